// The graph of a Service: clients, frontends, the Service, and its endpoints by node. The nodes are HTML, so that they are
// read, focused and wrapped like any other text; only the lines between them are SVG, drawn behind.

import { el, icon, replace, svg } from "./dom.js";
import { hostOf, percent, rate, socket } from "./format.js";
import { t } from "./i18n.js";
import { sparkline } from "./spark.js";
import { nodeAddress, rateOf, store } from "./store.js";

/** Maximum numbers of drawn clients, endpoints and nodes; the table has all of them. */
const MAX_CLIENTS = 7;
const MAX_ENDPOINTS = 12;
const MAX_NODES = 6;

/** With more endpoints than this, the columns begin at the top: their middle may be below the screen. */
const TALL = 6;

/** Selects different clients: pods of this node and of another, nodes, and one outside. Pods that are not endpoints come first. */
function selectClients(all, node, endpoints) {
  const own = new Set(endpoints.map(({ address }) => hostOf(address)));
  const isEndpoint = ({ addresses }) => addresses.some((address) => own.has(address));
  const machines = [...all].sort((left, right) => isEndpoint(left) - isEndpoint(right));
  const rank = ({ kind, node: on }) => (kind === "outside" ? 0 : kind === "node" ? (on === node ? 1 : 4) : on === node ? 2 : 3);
  const quota = [1, 1, 3, 2, 1];
  const ranked = machines.map((machine) => [rank(machine), machine]).sort(([left], [right]) => left - right);
  const kept = ranked.filter(([place]) => quota[place]-- > 0).map(([, machine]) => machine);
  const order = { pod: 0, node: 1, outside: 2 };
  return kept.slice(0, MAX_CLIENTS).sort((left, right) => order[left.kind] - order[right.kind]);
}

/** Returns all endpoints by node, this node first. */
function byNode(endpoints, here) {
  const groups = new Map();
  for (const endpoint of endpoints) {
    const node = endpoint.node ?? (endpoint.local ? here : "");
    if (!groups.has(node)) groups.set(node, []);
    groups.get(node).push(endpoint);
  }
  // Endpoints in use come first, because not all may be drawn.
  for (const group of groups.values()) group.sort((left, right) => (standing(left) === "unused") - (standing(right) === "unused"));
  return [...groups].sort(([left], [right]) => (right === here) - (left === here) || left.localeCompare(right));
}

/** Whether connections may go to an endpoint: always, only by one of the policies, never. */
export function standing({ cluster, localOnly }) {
  const uses = [cluster, localOnly].filter(Boolean);
  const used = uses.filter((use) => use.used).length;
  return used === 0 ? "unused" : used === uses.length ? "used" : "partly";
}

/** The eligibility in words, with the reason. */
function standingText(endpoint) {
  const { cluster, localOnly } = endpoint;
  switch (standing(endpoint)) {
    case "used": {
      const { reason } = cluster ?? localOnly;
      return reason === "ready" ? t("endpoint.used") : t(`eligibility.${reason}`);
    }
    case "partly":
      return cluster.used ? t("endpoint.onlyCluster", { reason: t(`eligibility.${localOnly.reason}`) })
        : t("endpoint.onlyLocal", { reason: t(`eligibility.${cluster.reason}`) });
    default:
      return cluster || localOnly ? t(`eligibility.${(cluster ?? localOnly).reason}`) : "";
  }
}

function answerText({ clients, outcome, endpoints, source, policy, reason }) {
  const what = outcome === "served"
    ? t(endpoints === 1 ? "answer.servedOne" : "answer.served", { count: endpoints, policy })
    : t(`answer.${outcome}`, { reason: reason && t(`reason.${reason}`) });
  return el("li", { class: `answer answer-${outcome}` }, el("b", {}, t(`clients.${clients}`)), " ", what,
    outcome === "served" && el("small", {}, t(`source.sees.${source}`)));
}

/** Returns the destination of a client's packet for a frontend: a node port at this node's own address. */
function target(frontend, family) {
  const address = frontend.addresses[0] ?? nodeAddress(family);
  return address ? socket(address, frontend.port) : null;
}

/** A column of the graph. */
function column(kind, title, ...nodes) {
  return el("div", { class: `column column-${kind}`, role: "group", "aria-label": title }, el("h2", {}, title), ...nodes);
}

/** The graph. `element` is its node; `attach` is called once it is in the document. */
export class Graph {
  constructor(options) {
    Object.assign(this, options);
    this.rates = new Map();
    this.edges = [];
    this.places = new Map();
    this.lines = svg("svg", { class: "edges", "aria-hidden": "true" });
    this.hint = el("p", { class: "graph-hint", "aria-live": "polite" });
    this.element = el("div", { class: "graph-box" }, this.hint, this.columns());
    this.showHint();
  }

  /** Starts to observe the size of the graph. */
  attach() {
    this.observer = new ResizeObserver(() => this.drawEdges());
    this.observer.observe(this.grid);
    this.showRates();
    this.drawEdges();
  }

  close() {
    this.observer?.disconnect();
    cancelAnimationFrame(this.frame);
  }

  /** Shows other clients. All other parts stay, so that animations continue. */
  showClients(real) {
    this.real = real;
    this.edges = this.edges.filter(({ from }) => !from.startsWith("client "));
    this.grid.querySelector(".column-clients").replaceWith(this.clientColumn());
    this.drawEdges();
  }

  clientColumn() {
    return column("clients", t(this.real.length > 0 ? "graph.clients" : "graph.suggested"), this.clientNodes());
  }

  columns() {
    const columns = [
      this.clientColumn(),
      column("frontends", t("graph.frontends"), this.frontendNodes()),
      column("service", t("graph.service"), this.serviceNode()),
      column("endpoints", t("graph.endpoints"), this.endpointNodes())];
    this.grid = el("div", { class: `graph ${this.rates.size > TALL ? "graph-tall" : ""}` }, this.lines, columns);
    return this.grid;
  }

  place(id, node) {
    this.places.set(id, node);
    return node;
  }

  clientNodes() {
    const machines = this.real.length > 0 ? this.real.slice(0, MAX_CLIENTS) : selectClients(this.machines, store.overview.node, this.port.endpoints);
    this.clients = machines.map(({ name, kind, addresses, node }) => {
      const button = el("button", {
        class: "gnode client", type: "button", "aria-pressed": String(name === this.client), data: { client: name },
        on: { click: () => this.chooseClient(name) },
      }, icon(kind), el("span", { class: "gtext" }, el("b", {}, name.split("/").at(-1)),
        el("small", {}, kind === "pod" && node && node !== store.overview.node ? `${addresses[0]} · ${node}` : addresses[0] ?? t(`machine.${kind}`))));
      return this.place(`client ${name}`, button);
    });
    for (const { name } of machines) {
      this.port.frontends.forEach((_, index) => this.edge(`client ${name}`, `frontend ${index}`, "edge-client"));
    }
    const more = this.machines.length - machines.length;
    return [...this.clients, more > 0 && el("a", { class: "more-clients", href: `#/packet?to=${encodeURIComponent(this.explanation.service)}` },
      t("graph.otherClient"))];
  }

  frontendNodes() {
    return this.port.frontends.map((frontend, index) => {
      const { kind, addresses, port, answers, owner } = frontend;
      const addressText = addresses.length === 0 ? `${t("frontend.everyNode")}:${port}` : socket(addresses[0], port);
      const button = el("button", { class: "gnode frontend", type: "button", data: { frontend: kind },
        on: { click: () => this.choose(target(frontend, this.port.family)) } },
        el("span", { class: "gtext" }, el("small", { class: "kind" }, t(`frontend.${kind}`)),
          el("b", { class: "mono" }, addressText, addresses.length > 1 && ` +${addresses.length - 1}`),
          el("ul", { class: "answers" }, answers.map(answerText),
            owner && el("li", { class: "answer answer-dropped" }, owner.servicePort ? t("frontend.owner", { owner: owner.servicePort }) : t(`reserved.${owner.reserved}`)))));
      const refused = answers.every(({ outcome }) => outcome !== "served");
      this.edge(`frontend ${index}`, "service", refused ? "edge-refused" : "edge-used");
      return this.place(`frontend ${index}`, button);
    });
  }

  serviceNode() {
    const name = this.explanation.service.split("/")[1];
    this.serviceRate = el("span", { class: "service-rate" });
    const button = el("button", { class: "gnode service-node", type: "button",
      on: { click: () => this.choose(`${this.explanation.service}${this.portSuffix()}`) } },
      el("span", { class: "gtext" }, el("b", {}, name),
        el("small", {}, this.port.name || `${this.port.protocol}`), this.serviceRate));
    return this.place("service", button);
  }

  /** The port in a Service's name as a destination; without a cluster IP port, the server takes the only one. */
  portSuffix() {
    const frontend = this.port.frontends.find(({ kind }) => kind === "clusterIp");
    return frontend ? `:${frontend.port}` : "";
  }

  endpointNodes() {
    const { node, zone } = this.explanation;
    const nodes = byNode(this.port.endpoints, node);
    const limit = Math.max(2, Math.floor(MAX_ENDPOINTS / Math.min(nodes.length, MAX_NODES)));
    const hidden = nodes.slice(MAX_NODES).reduce((sum, [, endpoints]) => sum + endpoints.length, 0);
    const groups = nodes.slice(0, MAX_NODES).map(([name, endpoints]) => {
      const here = name === node;
      return el("div", { class: "gnode-group", role: "group", "aria-label": name || t("node.unknown") },
        el("h3", {}, icon("node"), name || t("node.unknown"), here && el("small", {}, t("node.this"), zone && ` · ${zone}`)),
        endpoints.slice(0, limit).map((endpoint) => this.endpointNode(endpoint)),
        endpoints.length > limit && el("p", { class: "muted more" }, t("graph.moreEndpoints", { count: endpoints.length - limit })));
    });
    if (groups.length > 0) return [...groups, hidden > 0 && el("p", { class: "muted more" }, t("graph.moreEndpoints", { count: hidden }))];
    return this.place("none", el("p", { class: "gnode none" }, icon("warn"), t("endpoints.none")));
  }

  endpointNode(endpoint) {
    const kind = standing(endpoint);
    const figures = el("span", { class: "endpoint-rate" });
    this.rates.set(endpoint.address, figures);
    this.edge("service", `endpoint ${endpoint.address}`, `edge-${kind}`);
    const symbol = { used: "check", partly: "check", unused: "minus" }[kind];
    return this.place(`endpoint ${endpoint.address}`, el("div", {
      class: `gnode endpoint endpoint-${kind}`, data: { endpoint: endpoint.address, pod: endpoint.pod ?? "" },
    }, el("span", { class: "state" }, icon(symbol)),
      el("span", { class: "gtext" }, el("b", {}, endpoint.pod ?? endpoint.address),
        endpoint.pod && el("small", { class: "mono" }, endpoint.address),
        el("small", { class: "why" }, standingText(endpoint))), figures));
  }

  edge(from, to, kind) {
    this.edges.push({ from, to, kind });
  }

  chooseClient(name) {
    this.client = this.client === name ? null : name;
    for (const button of this.clients) button.setAttribute("aria-pressed", String(button.dataset.client === this.client));
    this.onClient(this.client);
    this.showHint();
    this.drawEdges();
  }

  choose(to) {
    if (!to) this.hint.textContent = t("graph.noAddress", { node: store.overview.node });
    else if (this.client) this.onAsk(this.client, to);
    else {
      this.hint.textContent = t("graph.hintFirst");
      this.clients[0]?.focus();
    }
  }

  showHint() {
    this.hint.textContent = this.client ? t("graph.hintThen", { client: this.client }) : t("graph.hint");
    this.grid.classList.toggle("asking", Boolean(this.client));
  }

  /** Draws the lines again after a change of size. */
  drawEdges() {
    const box = this.grid.getBoundingClientRect();
    this.lines.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    this.paths = new Map();
    const moving = [...this.lines.querySelectorAll("circle")];
    replace(this.lines, this.edges.map(({ from, to, kind }) => {
      const [start, end] = [this.places.get(from), this.places.get(to)].map((node) => node?.getBoundingClientRect());
      if (!start || !end) return null;
      const [x1, y1] = [start.right - box.left, start.top + start.height / 2 - box.top];
      const [x2, y2] = [end.left - box.left, end.top + end.height / 2 - box.top];
      // The columns are below each other if there is little space; lines would then cross the text.
      if (x2 <= x1) return null;
      const middle = (x1 + x2) / 2;
      const chosen = this.client && from === `client ${this.client}`;
      const path = svg("path", { class: `edge ${kind} ${chosen ? "edge-chosen" : ""}`,
        d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
      this.paths.set(`${from}>${to}`, path);
      return path;
    }), moving);
  }

  /** Shows the rates of the last sample. */
  showRates() {
    const { service: name } = this.explanation;
    const service = { ports: this.ports.filter((key) => key === (this.port.name ? `${name}:${this.port.name}` : name)) };
    const whole = rateOf(service);
    const rates = store.rates.get(service.ports[0])?.endpoints ?? [];
    const shares = new Map(rates.map((one) => [one.endpoint, one]));
    replace(this.serviceRate, whole && [sparkline(whole.history, 96, 24), el("span", { class: "number" }, t("rate.perSecond", { rate: rate(whole.now) }))]);
    for (const [address, node] of this.rates) {
      const one = shares.get(address);
      replace(node, whole && one && [el("b", {}, percent(one.share)), el("small", {}, t("rate.short", { rate: rate(one.perSecond) }))]);
    }
  }

  /** Returns the node of an endpoint by the name of its pod. */
  endpointOf(pod) {
    return [...this.places.values()].find((node) => node.dataset?.pod === pod);
  }

  /** Returns the lines from a client to an endpoint, in order; empty if lines are not drawn. */
  route(client, frontend, address) {
    const steps = [`client ${client}>frontend ${frontend}`, `frontend ${frontend}>service`, `service>endpoint ${address}`];
    return steps.map((step) => this.paths.get(step)).filter(Boolean);
  }
}

