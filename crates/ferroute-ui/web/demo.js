// The actions of the demo: real connections through the rules, and changes of the small cluster.

import { act, hasToken } from "./api.js";
import { announce, card, el, icon, notice, prefersStillness, replace, svg } from "./dom.js";
import { count, hostOf, socket } from "./format.js";
import { t } from "./i18n.js";
import { store, update } from "./store.js";
import { failureText, mark, streamControl } from "./stream.js";

/** Maximum number of animated dots, for any number of connections. */
const MAX_DOTS = 40;

/** Returns the machine in the graph that corresponds to a client of the demo. */
function machineOf(client) {
  return store.overview.machines.find(({ name }) => name === client || name.split("/").at(-1) === client)?.name ?? client;
}

/** Moves one dot along several lines, one after the other. */
function fly(graph, lines, delay) {
  const dot = svg("circle", { class: "flying", r: 4 });
  const lengths = lines.map((line) => line.getTotalLength());
  const whole = lengths.reduce((sum, length) => sum + length, 0);
  const begin = performance.now() + delay;
  const step = (now) => {
    let way = ((now - begin) / 900) * whole;
    if (way >= whole || !dot.isConnected) return dot.remove();
    let index = 0;
    while (way > lengths[index] && index < lengths.length - 1) way -= lengths[index++];
    const { x, y } = lines[index].getPointAtLength(Math.max(0, way));
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
    dot.style.visibility = now < begin ? "hidden" : "visible";
    return requestAnimationFrame(step);
  };
  graph.lines.append(dot);
  requestAnimationFrame(step);
}

/** Shows in the graph how many connections each endpoint has received. */
function showCounts(graph, results) {
  for (const { pod, connections } of results) {
    const node = graph.endpointOf(pod);
    node?.querySelector(".received")?.remove();
    node?.append(el("span", { class: "received" }, t("demo.received", { count: connections })));
  }
}

/** Moves dots along the ways of connections in the graph. */
function showWays(graph, client, frontend, results) {
  const dots = results.flatMap(({ pod, connections }) => new Array(connections).fill(pod)).slice(0, MAX_DOTS);
  if (prefersStillness()) return;
  dots.sort(() => Math.random() - 0.5).forEach((pod, index) => {
    const lines = graph.route(client, frontend, graph.endpointOf(pod)?.dataset.endpoint);
    if (lines.length > 0) fly(graph, lines, index * 45);
  });
}

function resultText({ results, failed, source }) {
  return [
    results.length > 0 && el("p", {}, icon("check"), results.map(({ pod, connections }) =>
      el("span", { class: "chip" }, el("b", {}, pod), ` ${count(connections)}`))),
    results.length > 0 && source?.length > 0 && el("p", { class: "muted" }, t("demo.source", { source: source.join(t("list.separator")) })),
    (failed ?? []).map(({ error, connections }) => notice("error", `${count(connections)} × ${failureText(error)}`)),
  ];
}

function select(label, options, current, kind = "") {
  const node = el("select", { "aria-label": label }, options.map(([value, text]) => el("option", { value, selected: value === current }, text)));
  return [el("label", { class: `field ${kind}` }, el("span", {}, label), node), node];
}

/** Addresses to which connections can be made. */
function destinations(port) {
  const nodes = store.overview.machines.filter(({ kind }) => kind === "node").flatMap(({ addresses }) => addresses.slice(0, 1));
  return port.frontends.flatMap(({ kind, addresses, port: number }, index) =>
    (addresses.length > 0 ? addresses : nodes.slice(0, 2)).map((address) =>
      [`${index} ${socket(address, number)}`, `${socket(address, number)} · ${t(`frontend.${kind}`)}`]));
}

/** Runs an action; its button is disabled until it ends, and errors are shown. */
async function perform(button, output, action, body, done, note) {
  button.disabled = true;
  try {
    if (note) mark(note);
    const answer = await act(action, body);
    await done?.(answer);
  } catch (error) {
    replace(output, notice("error", error.message));
  } finally {
    button.disabled = !hasToken();
  }
}

/** The first sender: a pod that is not an endpoint of the Service: a connection of a pod to itself takes the longest path. */
function firstClient(port) {
  const own = new Set(port.endpoints.map(({ address }) => hostOf(address)));
  const isEndpoint = (name) => store.overview.machines.find((machine) => machine.name === machineOf(name))?.addresses.some((address) => own.has(address));
  return store.overview.demo.clients.find((name) => !isEndpoint(name));
}

function connectForm({ port, service, graph, output, remembered }) {
  const clients = store.overview.demo.clients.map((name) => [name, name]);
  const [fromField, from] = select(t("demo.from"), clients, remembered.from ?? firstClient(port));
  // A client that is chosen in the graph is the sender here as well.
  const pick = (name) => {
    const client = store.overview.demo.clients.find((one) => machineOf(one) === name);
    if (client) from.value = client;
  };
  const [toField, to] = select(t("demo.to"), destinations(port), remembered.to, "long");
  const amount = el("input", { type: "number", min: 1, max: 200, value: remembered.count ?? 20, "aria-label": t("demo.count") });
  const read = () => ({ from: from.value, to: to.value.split(" ")[1], protocol: port.protocol });
  const stream = streamControl({ service, read, disabled: !hasToken() });
  const send = el("button", { class: "button primary", type: "submit", disabled: !hasToken() }, icon("bolt"), t("demo.send"));
  const form = el("form", { class: "demo-form", on: { submit: (event) => {
    event.preventDefault();
    const [frontend] = to.value.split(" ");
    const body = { ...read(), count: Number(amount.value) };
    perform(send, output, "connect", body, (answer) => {
      replace(output, resultText(answer));
      announce(t("demo.announce", { result: answer.results.map(({ pod, connections }) => `${pod} ${connections}`).join(t("list.separator")) }));
      remembered.results = { port: port.name, counts: answer.results };
      showCounts(graph(), answer.results);
      showWays(graph(), machineOf(from.value), Number(frontend), answer.results);
    });
  } } }, fromField, toField, el("label", { class: "field narrow" }, el("span", {}, t("demo.count")), amount), send, stream.button);
  // The choices are kept when the cluster changes.
  form.addEventListener("change", () => Object.assign(remembered, { from: from.value, to: to.value, count: amount.value }));
  return { form, pick, stream: stream.output };
}

function stepper(deployment, output) {
  const button = (change, name, label) => {
    const node = el("button", { class: "icon-button", type: "button", disabled: !hasToken() || deployment.replicas + change < 0,
      "aria-label": `${label} ${deployment.name}`, on: { click: () => perform(node, output, "scale",
        { deployment: deployment.name, replicas: deployment.replicas + change }, () => update(),
        t("mark.scale", { name: deployment.name.split("/")[1], count: deployment.replicas + change })) } }, name);
    return node;
  };
  return el("li", {}, el("span", { class: "grow" }, deployment.name),
    button(-1, "−", t("demo.fewer")), el("output", { class: "replicas" }, deployment.replicas), button(1, "+", t("demo.more")));
}

function readiness(pod, output) {
  const node = el("button", { class: "switch", type: "button", role: "switch", "aria-checked": String(pod.ready),
    "aria-label": t("demo.readyOf", { pod: pod.name }), disabled: !hasToken() || !pod.running,
    on: { click: () => perform(node, output, "ready", { pod: pod.name, ready: !pod.ready }, () => update(),
      t(pod.ready ? "mark.notReady" : "mark.ready", { name: pod.shortName })) } });
  const kill = el("button", { class: "icon-button", type: "button", disabled: !hasToken() || !pod.running, title: t("demo.kill", { pod: pod.name }),
    "aria-label": t("demo.kill", { pod: pod.name }), on: { click: () => perform(kill, output, "kill", { pod: pod.name }, () => update(),
      t("mark.kill", { name: pod.shortName })) } }, t("demo.killShort"));
  return el("li", {}, el("span", { class: "grow" }, pod.shortName), el("small", { class: "muted" }, t(pod.running ? (pod.ready ? "endpoint.ready" : "endpoint.notReady") : "demo.ended")), node, kill);
}

function breakButton(output) {
  const node = el("button", { class: "button", type: "button", disabled: !hasToken(), id: "break",
    on: { click: () => perform(node, output, "break", {}, ({ what }) => {
      replace(output, notice("info", what, " ", el("a", { href: "#/changes" }, t("demo.seeRepair"))));
    }, t("mark.break")) } }, t("demo.break"));
  return node;
}

/** Returns the panel. `previous` is the panel that it replaces, whose choices and results it keeps. */
export function demoPanel({ port, service, graph, previous }) {
  const same = previous?.service === service;
  const remembered = same ? previous.remembered : {};
  const output = same ? previous.output : el("div", { class: "demo-output", "aria-live": "polite" });
  const { deployments, pods } = store.overview.demo;
  const { form, pick, stream } = connectForm({ port, service, graph, output, remembered });
  const element = card(t("demo.title"), { class: "demo wide" },
    !hasToken() && notice("info", t("demo.noToken")),
    el("p", { class: "muted" }, t("demo.connectLead")), form,
    // Before elements that grow, so that no button moves while the user is about to click it.
    el("details", { open: same ? previous.element.querySelector("details").open : false }, el("summary", {}, t("demo.change")),
      el("div", { class: "demo-columns" },
        el("div", {}, el("h3", {}, t("demo.deployments")), el("ul", { class: "rows" }, deployments.map((one) => stepper(one, output)))),
        el("div", {}, el("h3", {}, t("demo.pods")), el("ul", { class: "rows" }, pods.map((pod) => readiness(pod, output)))),
        el("div", {}, el("h3", {}, t("demo.drift")), el("p", { class: "muted" }, t("demo.breakLead")), breakButton(output)))),
    output, stream);
  // The graph is drawn again when clients or endpoints change, as after the first connection.
  const showAgain = () => remembered.results?.port === port.name && showCounts(graph(), remembered.results.counts);
  return { element, service, remembered, output, pick, showAgain };
}
