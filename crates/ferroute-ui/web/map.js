// The view "Map": clients, Services and endpoints, with the connections of the last minutes between them.

import { el, icon, notice, replace, svg } from "./dom.js";
import { answerTime, edgesOf, failures, failureWords, flowNotices, flowWindow, onFlows, outcome, peerName, total } from "./flows.js";
import { count, rate } from "./format.js";
import { t } from "./i18n.js";
import { serviceLink } from "./route.js";

/** Maximum number of nodes in a column: those with the most connections. */
const SHOWN = 30;

const KINDS = { pod: "pod", node: "node", outside: "outside" };

/** Groups flows by a name; the largest groups first. */
function grouped(edges, name) {
  const groups = new Map();
  for (const edge of edges) {
    const key = name(edge);
    if (key === null) continue;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(edge);
  }
  return [...groups].map(([key, own]) => ({ key, edges: own, counts: total(own) }))
    .sort((left, right) => right.counts.connections - left.counts.connections || (left.key < right.key ? -1 : 1));
}

const clientOf = ({ client }) => peerName({ ...client, port: null });
const serviceOf = ({ servicePort }) => servicePort?.split(":")[0] ?? t("map.noService");
const endpointOf = ({ endpoint }) => (endpoint ? peerName(endpoint) : null);

function node(column, { key, edges, counts }) {
  const seconds = flowWindow();
  const kind = column === "client" ? edges[0].client.kind : column === "endpoint" ? edges[0].endpoint.kind : null;
  const failed = failures(counts);
  const figures = [seconds > 0 && t("rate.perSecond", { rate: rate(counts.connections / seconds) }), answerTime(counts)].filter(Boolean).join(" · ");
  const link = column === "service" && edges[0].servicePort;
  return el(link ? "a" : "div", { class: `gnode map-node map-${column} ${failed > 0 ? "map-failed" : ""}`, data: { map: `${column} ${key}` },
    href: link ? serviceLink(key) : null }, KINDS[kind] && icon(KINDS[kind]),
  el("span", { class: "gtext" }, el("b", {}, key), el("small", {}, figures),
    failed > 0 && el("small", { class: "bad" }, failureWords(counts))));
}

/** Mounts the view. */
export function mountMap(container) {
  const lead = el("p", { class: "muted lead" }, t("map.lead"));
  const sum = el("p", { class: "map-sum", role: "status" });
  const gaps = el("div", { class: "map-gaps" });
  const lines = svg("svg", { class: "edges", "aria-hidden": "true" });
  const grid = el("div", { class: "map graph" });
  const box = el("div", { class: "card map-card" }, grid);
  container.append(el("div", { class: "page map-page" }, el("div", { class: "intro" }, el("h1", {}, t("map.title")), lead), sum, gaps, box));
  let groups = null;

  function drawLines() {
    const frame = grid.getBoundingClientRect();
    lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    const places = new Map([...grid.querySelectorAll("[data-map]")].map((one) => [one.dataset.map, one.getBoundingClientRect()]));
    const most = Math.max(1, ...groups.hops.map(({ counts }) => counts.connections));
    replace(lines, groups.hops.map(({ key, counts }) => {
      const [from, to] = key.split("\n").map((one) => places.get(one));
      // The columns are below each other if there is little space.
      if (!from || !to || to.left <= from.right) return null;
      const [x1, y1, x2, y2] = [from.right - frame.left, from.top + from.height / 2 - frame.top, to.left - frame.left, to.top + to.height / 2 - frame.top];
      const middle = (x1 + x2) / 2;
      const line = svg("path", { class: `edge ${failures(counts) > 0 ? "edge-refused" : "edge-used"}`, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
      line.style.strokeWidth = `${(1 + 5 * Math.sqrt(counts.connections / most)).toFixed(1)}px`;
      return line;
    }));
  }

  function column(name, all) {
    return el("div", { class: "column", role: "group", "aria-label": t(`map.${name}`) }, el("h2", {}, t(`map.${name}`)),
      all.slice(0, SHOWN).map((group) => node(name, group)),
      all.length > SHOWN && el("p", { class: "muted more" }, t("map.more", { count: count(all.length - SHOWN) })));
  }

  function draw() {
    const notices = flowNotices();
    const edges = edgesOf(null);
    box.hidden = edges.length === 0;
    replace(gaps, notices);
    if (edges.length === 0) return replace(sum, notices.length === 0 && notice("info", t("map.none")));
    replace(sum, outcome(total(edges)), " ", el("span", { class: "muted" }, t("map.window", { seconds: Math.round(flowWindow()) })));
    const hop = (from, to) => (edge) => (from(edge) && to(edge) ? `${from(edge)}\n${to(edge)}` : null);
    const [client, service, endpoint] = [(edge) => `client ${clientOf(edge)}`, (edge) => `service ${serviceOf(edge)}`,
      (edge) => (endpointOf(edge) ? `endpoint ${endpointOf(edge)}` : null)];
    groups = { hops: [...grouped(edges, hop(client, service)), ...grouped(edges, hop(service, endpoint))] };
    // The keyboard focus stays on its node.
    const focused = document.activeElement?.dataset?.map;
    replace(grid, lines, column("client", grouped(edges, clientOf)), column("service", grouped(edges, serviceOf)), column("endpoint", grouped(edges, endpointOf)));
    if (focused) [...grid.querySelectorAll("[data-map]")].find((one) => one.dataset.map === focused)?.focus({ preventScroll: true });
    return drawLines();
  }

  const observer = new ResizeObserver(() => groups && drawLines());
  observer.observe(grid);
  const end = onFlows(draw);
  draw();
  return { update() {}, unmount: () => { end(); observer.disconnect(); } };
}
