// The view "Services": the numbers of the node, the list, and the selected Service beside it.

import { announce, el, icon, notice, replace } from "./dom.js";
import { filterOf, matcher, withFilter } from "./filter.js";
import { count, rate, socket } from "./format.js";
import { t } from "./i18n.js";
import { problemsSection } from "./problems.js";
import { serviceLink } from "./route.js";
import { mountService } from "./service.js";
import { sparkline } from "./spark.js";
import { on, rateOf, store } from "./store.js";
import { translate } from "./texts.js";
import { VirtualTable } from "./vtable.js";

const ROW_HEIGHT = 56;

/** The query and the order of the list, kept while another view is shown. */
const memory = { query: "", sort: "name", descending: false };

const ORDERS = {
  name: (left, right) => (left.name < right.name ? -1 : 1),
  type: (left, right) => left.type.localeCompare(right.type),
  endpoints: (left, right) => left.used - right.used,
  rate: (left, right) => (rateOf(left)?.now ?? 0) - (rateOf(right)?.now ?? 0),
};

/** Returns the Services that match the query, in the chosen order. */
function visibleServices() {
  const found = store.services.filter(matcher(memory.query));
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
        : service.code ? t(`skip.${service.code}`) : translate(service.reason)),
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

/** A choice of one filter's values, which edits the query; null if there is no choice. */
function filterChoice(name, values, change) {
  if (values.length < 2) return null;
  const current = filterOf(memory.query, name);
  const label = t(`filter.${name}`);
  const options = [["", label], ...values.map((value) => [value, value])];
  return el("select", { "aria-label": label, data: { filter: name }, on: { change: (event) => change(withFilter(memory.query, name, event.target.value || null)) } },
    options.map(([value, text]) => el("option", { value, selected: value === (current ?? "") }, text)));
}

function filterChoices(change) {
  const values = (pick) => [...new Set(store.services.map(pick))].sort();
  return [filterChoice("namespace", values(({ name }) => name.split("/")[0]), change), filterChoice("type", values(({ type }) => type), change)];
}

/** Mounts the view. */
export function mountServices(container, route) {
  const input = el("input", {
    type: "search", id: "search", value: memory.query, placeholder: t("search.placeholder"),
    "aria-label": t("search.label"), autocomplete: "off", spellcheck: "false",
    on: { input: () => search(input.value) },
  });
  function search(query) {
    memory.query = query;
    if (input.value !== query) input.value = query;
    list();
    drawFilters();
    announce(t("search.found", { count: count(table.rows.length) }));
  }
  const filters = el("div", { class: "filters" });
  let filtered = null;
  function drawFilters() {
    const choices = filterChoices(search);
    const next = choices.map((choice) => choice?.outerHTML + choice?.value).join();
    if (next === filtered) return;
    filtered = next;
    const focused = document.activeElement?.dataset.filter;
    replace(filters, choices);
    if (focused) filters.querySelector(`[data-filter="${focused}"]`)?.focus();
  }
  const table = new VirtualTable({
    label: t("view.services"), columns: columns(), key: (service) => service.name,
    link: (service) => serviceLink(service.name), height: ROW_HEIGHT, onSort: sortBy,
  });
  const problems = problemsSection((query) => { search(query); input.focus(); });
  const numbers = el("dl", { class: "figures" });
  const hint = el("p", { class: "rates-hint muted" });
  const empty = el("div", { class: "empty", hidden: true });
  const pane = el("section", { class: "list-pane", "aria-label": t("view.services") },
    el("div", { class: "overview" },
      el("div", { class: "intro" }, el("h1", {}, t("services.title")), el("p", { class: "muted lead" }, t("services.lead"))),
      problems.element, numbers),
    el("div", { class: "list" },
      el("div", { class: "search-row" }, el("div", { class: "search-box" }, icon("search"), input), filters),
      table.element, empty, hint));
  const detail = el("section", { class: "detail-pane", "aria-label": t("service.label") });
  // In the search, the arrow key moves into the list.
  input.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    table.focusRow(0);
  });
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
    hint.textContent = store.ratesMissing ? t("rates.missing", { reason: translate(store.ratesMissing) }) : "";
    if (memory.sort === "rate") list();
    else table.refresh();
  }

  /** `/` moves to the search, and Escape moves from a Service back to its row. */
  function keys(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const isTyping = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      // On small screens, the list is not next to the Service.
      if (input.offsetParent === null) location.hash = "#/services";
      setTimeout(() => { input.focus(); input.select(); });
    } else if (event.key === "Escape" && shown && !isTyping) {
      table.focusKey(shown.name);
    }
  }
  document.addEventListener("keydown", keys);

  let shown = null;
  function update({ service }) {
    const isFromList = pane.contains(document.activeElement);
    layout.classList.toggle("with-detail", service !== null);
    if (shown?.name !== service) {
      shown?.unmount();
      detail.replaceChildren();
      shown = service === null ? null : { name: service, ...mountService(detail, service) };
      detail.scrollTop = 0;
      // After a Service is chosen in the list, the focus moves to it.
      if (isFromList) detail.querySelector("h1")?.focus({ preventScroll: true });
    }
    table.select(service);
  }

  replace(numbers, figures());
  list();
  drawFilters();
  update(route);
  const ends = [
    on("services", (names) => {
      replace(numbers, figures());
      list();
      drawFilters();
      if (!names || store.overview.demo || names.has(shown?.name)) shown?.reload();
    }),
    on("rates", showRates),
  ];
  return {
    update,
    unmount: () => { ends.forEach((end) => end()); document.removeEventListener("keydown", keys); table.close(); problems.close(); shown?.unmount(); },
  };
}
