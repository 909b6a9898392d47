// A page of a whole cluster (`kubectl ferroute ui`): the shown node. The address contains its name, so that it can be shared.

import { getCluster, isCluster, useNode } from "./api.js";
import { el } from "./dom.js";
import { t } from "./i18n.js";

const state = { nodes: [], node: null };

/** Returns the address of another node's page. */
export function nodeLink(name, fragment = location.hash) {
  return `/?${new URLSearchParams({ node: name })}${fragment}`;
}

/** Chooses the node of the address, or the first one that responds. Has no effect on the page of one node. */
export async function openCluster() {
  if (!isCluster) return;
  const { nodes } = await getCluster("/cluster");
  const named = new URLSearchParams(location.search).get("node");
  const chosen = nodes.find(({ name }) => name === named) ?? nodes.find(({ problem }) => !problem) ?? nodes[0];
  Object.assign(state, { nodes, node: chosen.name });
  useNode(chosen.name);
}

/** The field that chooses a node; null on the page of one node. */
export function nodeChooser() {
  if (!isCluster) return null;
  const options = state.nodes.map(({ name, problem }) =>
    el("option", { value: name, selected: name === state.node, title: problem ?? null }, problem ? `${name} (!)` : name));
  return el("select", {
    id: "node", class: "node-chooser", "aria-label": t("cluster.node"),
    // Every view starts again, with the state of the other node.
    on: { change: (event) => { location.href = nodeLink(event.target.value); } },
  }, options);
}
