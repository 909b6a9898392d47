// One Service: its graph, and below it the details of its explanation.

import { get } from "./api.js";
import { linearScale, timeChart } from "./chart.js";
import { demoPanel } from "./demo.js";
import { card, el, icon, notice, replace, segments, svg } from "./dom.js";
import { answerTime, edgesOf, failures, failureWords, flowNotices, flowWindow, onFlows, outcome, peerName, total } from "./flows.js";
import { bytes, count, rate } from "./format.js";
import { Graph } from "./graph.js";
import { language, t } from "./i18n.js";
import { packetLink, servicePath } from "./route.js";
import { on, store } from "./store.js";
import { translate } from "./texts.js";
import { notAppliedText } from "./words.js";

function fact(term, value, note) {
  return el("div", { class: "fact" }, el("dt", {}, term), el("dd", {}, value, note && el("small", {}, note)));
}

/** The limits of connections, each as a text. */
function limitTexts({ connections, clientConnections, rate, clientRate }) {
  const all = { limitConnections: connections, limitClientConnections: clientConnections, limitRate: rate, limitClientRate: clientRate };
  return Object.entries(all).filter(([, max]) => max).map(([key, max]) => t(`policy.${key}`, { max }));
}

/** The policies, with their meanings. */
function policyFacts(policies) {
  const { internalTraffic, externalTraffic, affinity, balancing, limits, sourceRanges, sourceRangesScope, trafficDistribution, healthCheck } = policies;
  return el("dl", { class: "facts" },
    fact(t("policy.internal"), internalTraffic, t(`policy.means${internalTraffic}`)),
    externalTraffic && fact(t("policy.external"), externalTraffic, t(`policy.means${externalTraffic}`)),
    balancing?.method && fact(t("policy.balancing"), balancing.method,
      balancing.tableSize && t("policy.tableNote", { size: balancing.tableSize })),
    balancing?.passiveEjection && fact(t("policy.ejection"), t("policy.ejectionOn"),
      t(`policy.ejection-${balancing.passiveEjection}`)),
    balancing?.slowStartSeconds && fact(t("policy.slowStart"), `${balancing.slowStartSeconds} s`, t("policy.slowStartNote")),
    balancing?.zoneWeight && fact(t("policy.zoneWeight"), balancing.zoneWeight, t("policy.zoneWeightNote")),
    balancing?.drainTimeoutSeconds && fact(t("policy.drain"), `${balancing.drainTimeoutSeconds} s`, t("policy.drainNote")),
    limits && fact(t("policy.limits"), limitTexts(limits).join(t("list.separator")), t(`policy.limits-${limits.overLimit}`)),
    affinity && fact(t("policy.affinity"), "ClientIP", t("policy.affinityNote", { seconds: affinity.timeoutSeconds })),
    sourceRanges?.length > 0 && fact(t("policy.ranges"), sourceRanges.join(", "),
      sourceRangesScope?.length > 0 ? t("policy.rangesScope", { scope: sourceRangesScope.join(", ") }) : t("policy.rangesNote")),
    trafficDistribution && fact(t("policy.distribution"), trafficDistribution),
    healthCheck && fact(t("policy.health"), healthCheck.port,
      t("policy.healthNote", { count: healthCheck.localEndpoints })));
}

/** A table whose columns are pairs of title and content; it scrolls by itself if it is too wide. */
function table(caption, columns, rows) {
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { scope: "col", class: kind === "number" ? kind : null }, title)));
  const body = rows.map((row) => el("tr", {}, columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "sr-only" }, caption), el("thead", {}, head), el("tbody", {}, body)));
}

function usage(use) {
  if (!use) return "–";
  return el("span", { class: use.used ? "use use-yes" : "use use-no" },
    icon(use.used ? "check" : "minus"), use.reason === "ready" ? t("endpoint.used") : t(`eligibility.${use.reason}`));
}

/** Number of endpoints that a table shows at first; the rest is shown on request. */
const PAGE = 100;

function endpointTable(port) {
  const { endpoints } = port;
  const columns = [
    [t("column.endpoint"), (endpoint) => endpoint.address, "mono"],
    [t("column.pod"), (endpoint) => endpoint.pod ?? "–"],
    [t("column.node"), (endpoint) => [endpoint.node ?? (endpoint.local ? store.overview.node : "–"),
      endpoint.local && el("small", {}, ` ${t("node.this")}`)]],
    [t("column.state"), (endpoint) => t(`endpoint.${endpoint.state}`)],
    [t("column.cluster"), (endpoint) => usage(endpoint.cluster)],
    endpoints.some((endpoint) => endpoint.localOnly) && [t("column.local"), (endpoint) => usage(endpoint.localOnly)],
  ].filter(Boolean);
  const box = el("div", {});
  const draw = (limit) => replace(box, table(t("section.endpoints"), columns, endpoints.slice(0, limit)),
    endpoints.length > limit && el("button", { class: "button", type: "button", on: { click: () => draw(Infinity) } },
      t("showAll", { count: count(endpoints.length) })));
  draw(PAGE);
  return box;
}

function ruleTable(rules) {
  return table(t("section.rules"), [
    [t("column.packets"), (rule) => (rule.packets === undefined ? "–" : count(rule.packets)), "number"],
    [t("column.location"), (rule) => rule.location, "mono nowrap"],
    [t("column.rule"), (rule) => rule.text, "mono"],
  ], rules);
}

function connectionTable(connections) {
  return table(t("section.connections"), [
    [t("column.endpoint"), (flow) => flow.endpoint, "mono"],
    [t("column.connections"), (flow) => count(flow.connections), "number"],
    [t("column.open"), (flow) => count(flow.open), "number"],
    [t("column.note"), (flow) => (flow.terminating ? t("flow.terminating") : flow.current ? t("flow.current") : t("flow.stale"))],
  ], connections);
}

function kernelCards(port) {
  const { rules, connections } = port.applied ?? {};
  return [
    rules?.length > 0 && card([t("section.rules"), el("span", { class: "badge" }, count(rules.length))], {}, ruleTable(rules)),
    connections?.length > 0 && card(t("section.connections"), {}, connectionTable(connections)),
  ];
}

/** Period of the history, in milliseconds. */
const HISTORY = 5 * 60_000;

/** The longest time between two samples that a line connects, in milliseconds: there are no samples while no page is open. */
const GAP = 15_000;

/** Splits points at times without samples. */
function withoutGaps(points) {
  const parts = [];
  points.forEach((point, index) => {
    if (index === 0 || point[0] - points[index - 1][0] > GAP) parts.push([]);
    parts.at(-1).push(point);
  });
  return parts;
}

/** The new connections of the last minutes, with a line for each port. */
function historyCard(service) {
  const box = el("div", {});
  const draw = () => {
    const lines = service.ports.filter((port) => store.history.has(port)).map((port) => store.history.get(port));
    const total = store.times.map((_, index) => lines.reduce((sum, samples) => sum + samples[index], 0));
    const end = store.times.at(-1) ?? Date.now();
    const points = store.times.map((time, index) => [time, total[index]]).filter(([time]) => time >= end - HISTORY);
    replace(box, timeChart({
      label: t("history.label", { service: service.name }), unit: t("history.unit"), start: end - HISTORY, end, scale: linearScale(Math.max(1, ...total), rate),
      draw: ({ x, y, bottom }) => withoutGaps(points).filter((part) => part.length > 1).flatMap((part) => {
        const path = part.map(([time, value]) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
        return [
          svg("path", { class: "history-area", d: `M${x(part[0][0])} ${bottom}L${path}L${x(part.at(-1)[0])} ${bottom}Z` }),
          svg("path", { class: "history-line", d: `M${path}` })];
      }),
    }));
  };
  draw();
  return { element: card(t("history.title"), { class: "wide", id: "history" }, box), draw };
}

/** Connections, packets and bytes of each endpoint, and of all, since the proxy started; empty if it does not count them. */
function trafficCard(ports, podOf) {
  const box = el("div", {});
  const card_ = card(t("traffic.title"), { class: "wide", id: "traffic" }, box);
  const draw = () => {
    const rows = ports.flatMap((port) => [...(store.traffic.get(port)?.values() ?? [])]).sort((left, right) => right.bytes - left.bytes);
    card_.hidden = rows.length === 0;
    const sum = (key) => rows.reduce((total, row) => total + row[key], 0);
    const keys = ["connections", "packets", "bytes", "packetsPerSecond", "bytesPerSecond"];
    const all = { endpoint: null, ...Object.fromEntries(keys.map((key) => [key, sum(key)])) };
    replace(box, table(t("traffic.title"), [
      [t("column.endpoint"), ({ endpoint, ended }) => (ended ? t("traffic.ended", { endpoint }) : endpoint ?? t("traffic.all")), "mono"],
      [t("column.pod"), ({ endpoint }) => podOf(endpoint) ?? "–"],
      [t("column.connections"), ({ connections }) => count(connections), "number"],
      [t("column.packets"), ({ packets }) => count(packets), "number"],
      [t("traffic.bytes"), (row) => bytes(row.bytes), "number"],
      [t("traffic.perSecond"), ({ bytesPerSecond }) => t("rate.short", { rate: bytes(bytesPerSecond) }), "number"],
    ], [...(rows.length > 1 ? [all] : []), ...rows.slice(0, PAGE)]), rows.length > PAGE && el("p", { class: "muted" }, t("traffic.more", { count: count(rows.length - PAGE) })));
  };
  draw();
  return { element: card_, draw };
}

/** Maximum number of clients and endpoints in the flows. */
const FLOWS = 20;

/** The clients of the last minutes, with their endpoints and failures. */
function flowsCard(name) {
  const box = el("div", {});
  const draw = () => {
    const edges = edgesOf(name);
    const notices = flowNotices();
    if (edges.length === 0) return replace(box, notices.length > 0 ? notices : el("p", { class: "muted" }, t("flow.none")));
    return replace(box, notices, el("p", { class: "flow-outcome" }, outcome(total(edges)), " ", el("span", { class: "muted" }, t("map.window", { seconds: Math.round(flowWindow()) }))),
      table(t("flow.title"), [
        [t("flow.client"), ({ client }) => peerName({ ...client, port: null })],
        [t("column.endpoint"), ({ endpoint }) => (endpoint ? peerName(endpoint) : "–")],
        [t("column.connections"), (edge) => count(edge.connections), "number"],
        [t("flow.failed"), (edge) => (failures(edge) > 0 ? el("span", { class: "bad" }, failureWords(edge)) : "–")],
        [t("flow.answer"), (edge) => answerTime(edge) ?? "–", "number"],
      ], edges.slice(0, FLOWS)), edges.length > FLOWS && el("p", { class: "muted" }, t("map.more", { count: count(edges.length - FLOWS) })));
  };
  draw();
  return { element: card(t("flow.title"), { class: "wide", id: "flows" }, box), draw };
}

/** The machines that have connected to a Service, those with the most connections first. */
function realClients(name) {
  const clients = new Map();
  for (const { client, connections } of edgesOf(name)) {
    const machine = store.overview.machines.find(({ addresses }) => addresses.includes(client.address));
    const key = machine?.name ?? client.address;
    const known = clients.get(key) ?? { connections: 0, machine: machine ?? { name: client.address, kind: client.kind ?? "outside", node: null, addresses: [client.address] } };
    known.connections += connections;
    clients.set(key, known);
  }
  return [...clients.values()].sort((left, right) => right.connections - left.connections).map(({ machine }) => machine);
}

/** Contents of the slices that the proxy does not use. */
function unexpectedSlices(list) {
  return (list ?? []).map(({ slice, endpoints, reason, code }) =>
    notice("warning", icon("warn"), t("unexpectedSlice", { slice, count: endpoints, reason: language() === "zh" && code ? t(`slice.${code}`) : reason })));
}

function portTitle(port) {
  const frontend = port.frontends.find(({ kind }) => kind === "clusterIp") ?? port.frontends[0];
  return `${port.name ? `${port.name} ` : ""}${frontend ? frontend.port : ""}/${port.protocol} ${port.family}`;
}

/** Mounts the page of a Service. */
export function mountService(container, name) {
  let explanation = null;
  let drawn = null;
  let selectedPort = 0;
  let client = null;
  let graph = null;
  let demo = null;
  let history = null;
  let flows = null;
  let traffic = null;
  let talking = "";
  let ended = false;
  const body = el("div", { class: "service-body" }, notice("loading", t("loading")));
  const title = el("h1", { tabindex: "-1" }, el("span", { class: "muted" }, `${name.split("/")[0]}/`), name.split("/")[1]);
  const facts = el("p", { class: "subtitle" });
  const head = el("header", { class: "service-head" },
    el("a", { class: "back", href: "#/services" }, icon("left"), t("back")),
    el("div", { class: "service-title" }, title, facts));
  container.append(head, body);

  const row = () => store.services.find((service) => service.name === name);

  const podOf = (address) => explanation.ports.flatMap(({ endpoints }) => endpoints).find((one) => one.address === address)?.pod;

  function ask(from, to, protocol) {
    location.hash = packetLink({ from, to, proto: protocol === "tcp" ? null : protocol }).slice(1);
  }

  function drawPort() {
    const port = explanation.ports[selectedPort] ?? explanation.ports[0];
    graph?.close();
    graph = new Graph({
      port, explanation, ports: row()?.ports ?? [], machines: store.overview.machines, real: realClients(name), client,
      onClient: (chosen) => { client = chosen; demo?.pick(chosen); },
      onAsk: (from, to) => ask(from, to, port.protocol),
    });
    return [
      explanation.invalidUpdate && notice("error", icon("warn"), t("service.invalidUpdate", { errors: explanation.invalidUpdate.join("; ") })),
      port.notApplied && notice("error", icon("warn"), notAppliedText(port.notApplied)),
      card(null, { class: "graph-card" },
        explanation.ports.length > 1 && segments(t("ports"),
          explanation.ports.map((one, index) => [index, portTitle(one)]), selectedPort,
          (index) => { selectedPort = index; draw(); }),
        graph.element),
      store.overview.demo && (demo = demoPanel({ port, service: name, graph: () => graph, previous: demo })).element,
      (flows = flowsCard(name)).element,
      (traffic = trafficCard(row()?.ports ?? [], podOf)).element,
      !store.ratesMissing && store.times.length > 0 && (history = historyCard(row() ?? { name, ports: [] })).element,
      card(t("section.policies"), {}, policyFacts(explanation.policies),
        (explanation.ignored ?? []).map((text) => notice("warning", icon("warn"), translate(text)))),
      card([t("section.endpoints"), el("span", { class: "badge" }, count(port.endpoints.length))], {},
        port.endpoints.length > 0 ? endpointTable(port) : notice("info", t("endpoints.none")),
        port.excessEndpoints > 0 && notice("warning", icon("warn"), t("endpoints.excess", { count: port.excessEndpoints })),
        unexpectedSlices(port.unexpectedSlices), unexpectedSlices(explanation.unexpectedSlices)),
      kernelCards(port),
      (explanation.unroutedAddresses ?? []).map((address) => notice("warning", icon("warn"), t("route.none", { address }))),
      explanation.kernelError && notice("info", t("kernel.error", { reason: translate(explanation.kernelError) })),
    ];
  }

  function draw() {
    replace(facts, el("span", { class: "chip" }, explanation.type),
      explanation.handling !== "served" && el("span", { class: `tag tag-${explanation.handling}` }, t(`state.${explanation.handling}`)),
      explanation.ports?.some((port) => port.notApplied) && el("span", { class: "tag tag-notApplied" }, t("state.notApplied")),
      el("span", { class: "muted" }, t("service.onNode", { node: explanation.node }),
        explanation.zone && ` · ${explanation.zone}`));
    if (explanation.handling === "notServed") {
      replace(body, notice("info", t("service.notServed"), " ", explanation.code ? t(`skip.${explanation.code}`) : translate(explanation.reason)));
    } else if (explanation.handling === "invalid") {
      replace(body, notice("error", t("service.invalid")), el("ul", { class: "problems" }, explanation.problems.map((problem) => el("li", {}, translate(problem)))));
    } else {
      replace(body, explanation.ports.length > 0 ? drawPort() : notice("info", t("service.noPorts")));
      graph?.attach();
      demo?.showAgain();
    }
  }

  async function reload() {
    try {
      const next = await get(servicePath(name));
      if (ended) return;
      // Drawing again would end the animations and close open elements.
      const state = JSON.stringify([next, store.overview.demo]);
      explanation = next;
      if (state !== drawn) draw();
      drawn = state;
    } catch (error) {
      if (!ended) replace(body, notice("error", error.message));
    }
  }

  reload();
  const end = on("rates", () => {
    graph?.showRates();
    if (history) history.draw();
    else if (graph && store.times.length > 0) draw();
  });
  const endTraffic = on("traffic", () => traffic?.draw());
  const endFlows = onFlows(() => {
    flows?.draw();
    // Real clients replace suggested ones once they are known, unless the user is about to choose one.
    const now = realClients(name).map((machine) => machine.name).sort().join();
    if (now === talking) return;
    talking = now;
    if (graph && !client) graph.showClients(realClients(name));
  });
  return { reload, unmount: () => { ended = true; end(); endTraffic(); endFlows(); graph?.close(); } };
}
