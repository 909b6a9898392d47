// The view "Services": the numbers of the node, the list, and the selected Service beside it.

import { announce, el, icon, notice, replace } from "./dom.js";
import { count, rate, socket } from "./format.js";
import { t, translate } from "./i18n.js";
import { serviceLink } from "./route.js";
import { mountService } from "./service.js";
import { sparkline } from "./spark.js";
import { on, rateOf, store } from "./store.js";
import { VirtualTable } from "./vtable.js";

const ROW_HEIGHT = 56;

/** What was typed and how the list is sorted, kept while another view is shown. */
const memory = { query: "", sort: "name", descending: false };

const ORDERS = {
  name: (left, right) => (left.name < right.name ? -1 : 1),
  type: (left, right) => left.type.localeCompare(right.type),
  endpoints: (left, right) => left.used - right.used,
  rate: (left, right) => (rateOf(left)?.now ?? 0) - (rateOf(right)?.now ?? 0),
};

/** The text in which the search looks: the name, addresses, ports, pods. */
function searchText(service) {
  const frontends = service.frontends.map(({ address, port, protocol, kind }) =>
    `${address ? socket(address, port) : port} ${protocol} ${kind}`);
  return [service.name, service.type, ...frontends, ...(service.ports ?? []), ...(service.search ?? [])]
    .join(" ").toLowerCase();
}

const indexed = new WeakMap();

function matches(service, words) {
  if (!indexed.has(service)) indexed.set(service, searchText(service));
  const text = indexed.get(service);
  return words.every((word) => text.includes(word));
}

/** Returns the Services that match the query, in the chosen order. */
function visibleServices() {
  const words = memory.query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? store.services.filter((service) => matches(service, words)) : [...store.services];
  const order = ORDERS[memory.sort];
  const sign = memory.descending ? -1 : 1;
  return found.sort((left, right) => sign * order(left, right) || ORDERS.name(left, right));
}

function frontendText({ kind, address, port, protocol }) {
  const where = address ? socket(address, port) : `${t("frontend.everyNode")}:${port}`;
  return `${where}${protocol === "tcp" ? "" : ` ${protocol.toUpperCase()}`}${kind === "clusterIp" ? "" : ` · ${t(`frontend.${kind}`)}`}`;
}

function nameCell(service) {
  const [namespace, name] = service.name.split("/");
  const [first, ...others] = service.frontends;
  return [
    el("a", { class: "service-name", href: serviceLink(service.name) },
      el("span", { class: "muted" }, `${namespace}/`), name),
    el("span", { class: "second-line" },
      first ? [el("span", { class: "mono" }, frontendText(first)), others.length > 0 && el("span", { class: "more" }, `+${others.length}`)]
        : translate(service.reason ?? "")),
  ];
}

function endpointsCell(service) {
  if (service.state !== "served") return el("span", { class: `tag tag-${service.state}` }, t(`state.${service.state}`));
  const none = service.used === 0;
  return el("span", { class: none ? "bad" : service.used < service.endpoints ? "partly" : "good" },
    none ? icon("warn") : el("span", { class: "dot" }),
    el("span", { title: t("endpoints.usedOf", { used: service.used, all: service.endpoints }) },
      `${count(service.used)}`, el("span", { class: "muted" }, `/${count(service.endpoints)}`)));
}

function rateCell(service) {
  const current = rateOf(service);
  if (!current) return el("span", { class: "muted" }, "–");
  return [sparkline(current.history), el("span", { class: "number" }, rate(current.now))];
}

function columns() {
  return [
    { id: "name", title: t("column.name"), sortable: true, cell: nameCell },
    { id: "type", title: t("column.type"), sortable: true, cell: (service) => service.type },
    { id: "endpoints", title: t("column.endpoints"), sortable: true, cell: endpointsCell },
    { id: "rate", title: t("column.rate"), sortable: true, cell: rateCell },
  ];
}

function figure(value, label, kind) {
  return el("div", { class: `figure ${kind ?? ""}` }, el("dd", {}, value), el("dt", {}, label));
}

function figures() {
  const { counts, nodes } = store.overview;
  return [
    figure(count(counts.services), t("figure.services")),
    figure(count(counts.servicePorts), t("figure.ports")),
    figure([count(counts.used), el("small", {}, ` / ${count(counts.endpoints)}`)], t("figure.endpoints")),
    figure(count(nodes.length), t("figure.nodes")),
    counts.notServed > 0 && figure(count(counts.notServed), t("figure.notServed")),
    counts.invalid > 0 && figure(count(counts.invalid), t("figure.invalid"), "figure-bad"),
  ];
}

/** Mounts the view. */
export function mountServices(container, route) {
  const input = el("input", {
    type: "search", id: "search", value: memory.query, placeholder: t("search.placeholder"),
    "aria-label": t("search.label"), autocomplete: "off", spellcheck: "false",
    on: { input: () => { memory.query = input.value; list(); announce(t("search.found", { count: count(table.rows.length) })); } },
  });
  const table = new VirtualTable({
    label: t("view.services"), columns: columns(), key: (service) => service.name,
    link: (service) => serviceLink(service.name), height: ROW_HEIGHT, onSort: sortBy,
  });
  const numbers = el("dl", { class: "figures" });
  const hint = el("p", { class: "rates-hint muted" });
  const empty = el("div", { class: "empty", hidden: true });
  const pane = el("section", { class: "list-pane", "aria-label": t("view.services") },
    el("div", { class: "intro" }, el("h1", {}, t("services.title")), el("p", { class: "muted lead" }, t("services.lead"))),
    numbers,
    el("div", { class: "search-box" }, icon("search"), input), table.element, empty, hint);
  const detail = el("section", { class: "detail-pane", "aria-label": t("service.label") });
  const layout = el("div", { class: "services" }, pane, detail);
  container.append(layout);

  function sortBy(column) {
    memory.descending = memory.sort === column ? !memory.descending : column !== "name" && column !== "type";
    memory.sort = column;
    list();
    table.element.querySelector(`[data-sort="${column}"]`).focus();
  }

  function list() {
    table.setSort(memory.sort, memory.descending);
    table.setRows(visibleServices());
    empty.hidden = table.rows.length > 0;
    table.element.hidden = table.rows.length === 0;
    const text = store.services.length === 0 ? t("services.none") : t("search.none", { query: memory.query });
    if (!empty.hidden) replace(empty, notice("info", text));
  }

  function showRates() {
    hint.textContent = store.ratesMissing ? t("rates.missing", { reason: store.ratesMissing }) : "";
    if (memory.sort === "rate") list();
    else table.refresh();
  }

  let shown = null;
  function update({ service }) {
    layout.classList.toggle("with-detail", service !== null);
    if (shown?.name !== service) {
      shown?.unmount();
      detail.replaceChildren();
      shown = service === null ? null : { name: service, ...mountService(detail, service) };
      detail.scrollTop = 0;
    }
    table.select(service);
  }

  replace(numbers, figures());
  list();
  update(route);
  const ends = [
    on("services", () => { replace(numbers, figures()); list(); shown?.reload(); }),
    on("rates", showRates),
  ];
  return {
    update,
    unmount: () => { ends.forEach((end) => end()); table.close(); shown?.unmount(); },
  };
}
