// The syncs of the proxy: a bar for the duration of each, and a list with causes, results, failures and repairs.

import { logScale, timeChart } from "./chart.js";
import { el, icon, svg } from "./dom.js";
import { clock, count, dateTime, duration } from "./format.js";
import { t } from "./i18n.js";
import { serviceLink } from "./route.js";

/** Number of syncs in the chart, and initially in the list. */
const BARS = 120;
const PAGE = 40;

/** Maximum number of listed changes of one sync. */
const MAX_CHANGES = 6;

function took(sync) {
  return sync.families.reduce((sum, family) => sum + (family.tookUs ?? 0), 0);
}

/** A sync is slow compared with the others: five times the median, and long enough to matter. */
function slowLimit(syncs) {
  const sorted = syncs.map(took).sort((left, right) => left - right);
  return Math.max(5 * sorted[Math.floor(sorted.length / 2)], 10_000);
}

/** Special properties of a sync. */
function kindOf(sync, limit) {
  if (sync.families.some(({ outcome }) => outcome === "failed")) return "failed";
  if (sync.repaired > 0) return "repaired";
  if (took(sync) > limit) return "slow";
  return sync.pending ? "pending" : "normal";
}

/** Minimum period of the time axis: a few syncs within a second are not a history yet. */
const LEAST_SPAN = 60_000;

/** The chart: time and duration of each sync, on a logarithmic axis, so that short ones are visible next to long ones. */
export function timelineChart(all, list) {
  const syncs = all.slice(-BARS);
  const limit = slowLimit(all);
  const times = syncs.map(({ at }) => Date.parse(at));
  const end = Math.max(...times);
  const start = Math.min(end - LEAST_SPAN, ...times);
  const margin = (end - start) * 0.02;
  const scale = logScale(100, Math.max(...syncs.map(took), 10_000), duration);
  const draw = ({ x, y, bottom }) => syncs.map((sync, index) => svg("rect", {
    class: `bar bar-${kindOf(sync, limit)}`, x: x(times[index]) - 2, y: Math.min(bottom - 3, y(took(sync))), width: 4,
    height: Math.max(3, bottom - y(took(sync))), rx: 1.5, data: { time: times[index] }, on: { click: () => show(list, sync.number) },
  }, svg("title", {}, `${clock(sync.at)} · ${duration(took(sync))} · ${causeText(sync)}`)));
  const kinds = new Set(syncs.map((sync) => kindOf(sync, limit)));
  const legend = ["normal", "slow", "repaired", "failed"].filter((kind) => kinds.has(kind)).map((kind) =>
    el("li", {}, el("span", { class: `key key-${kind}` }), t(`sync.${kind}`)));
  return el("figure", { class: "chart" },
    timeChart({ label: t("chart.syncs", { count: syncs.length }), unit: t("chart.duration"), start: start - margin, end: end + margin, scale, draw }),
    el("figcaption", {}, el("ul", { class: "legend" }, legend)));
}

function show(list, number) {
  list.reveal(number);
  const row = list.querySelector(`[data-number="${number}"]`);
  list.querySelectorAll(".sync-shown").forEach((node) => node.classList.remove("sync-shown"));
  row?.classList.add("sync-shown");
  row?.scrollIntoView({ block: "center" });
}

/** The texts of kinds of changes that are observations of the proxy: some endpoints are named, or none is left. */
const OBSERVED = {
  "Ejected endpoints": ["change.ejected", "change.noneEjected"],
  "Shares of endpoints": ["change.shares", "change.fullShares"],
};

function changeText({ kind, name, deleted, ready, total }) {
  if (kind in OBSERVED) return t(OBSERVED[kind][deleted ? 1 : 0], { name });
  if (deleted) return t("change.deleted", { kind, name });
  return kind === "EndpointSlice" && total !== undefined && total !== null
    ? t("change.slice", { name, ready, total }) : t("change.changed", { kind, name });
}

/** The cause in a line. */
function causeText(sync) {
  if (sync.cause === "resync") return sync.repaired > 0 ? t("cause.repaired", { count: sync.repaired }) : t("cause.resync");
  const [first, ...others] = sync.changes;
  if (!first) return t("cause.none");
  return others.length > 0 ? `${changeText(first)} ${t("cause.more", { count: others.length })}` : changeText(first);
}

function changeNode(change) {
  return el("li", {}, change.service ? el("a", { href: serviceLink(change.service) }, changeText(change)) : changeText(change));
}

function familyNode(family) {
  const { outcome, error, written, removed, total, tookUs, kernelUs, full, staleFlows } = family;
  return el("li", {}, el("b", {}, family.family), " ", t(`outcome.${outcome}`),
    // If there was no work, there are no figures.
    written !== undefined && [" · ", t("sync.rules", { written: count(written), removed: count(removed), total: count(total) }),
      " · ", t("sync.took", { took: duration(tookUs), kernel: duration(kernelUs) })],
    full && ` · ${t("sync.full")}`, staleFlows > 0 && ` · ${t("sync.stale", { count: staleFlows })}`,
    error && el("p", { class: "error-text" }, error));
}

function syncNode(sync, longest, limit) {
  const kind = kindOf(sync, limit);
  const whole = took(sync);
  const bar = el("span", { class: `took took-${kind}`, "aria-hidden": "true" }, el("span", {}));
  bar.firstChild.style.width = `${Math.max(2, (100 * Math.log10(1 + whole / 50)) / Math.log10(1 + longest / 50))}%`;
  const symbol = { failed: "cross", repaired: "bolt", slow: "warn" }[kind];
  return el("li", { class: `sync sync-${kind}`, data: { number: sync.number } }, el("details", {},
    el("summary", {}, el("time", { datetime: sync.at, title: dateTime(sync.at) }, clock(sync.at)),
      el("span", { class: "sync-cause" }, symbol && el("span", { class: `tag tag-${kind}` }, icon(symbol), t(`sync.${kind}`)), causeText(sync)),
      bar, el("span", { class: "number" }, duration(whole))),
    el("div", { class: "sync-detail" }, el("p", { class: "muted" }, t("sync.number", { number: sync.number })),
      sync.changes.length > 0 && el("ul", {}, sync.changes.slice(0, MAX_CHANGES).map(changeNode),
        sync.changes.length > MAX_CHANGES && el("li", {}, t("cause.more", { count: sync.changes.length - MAX_CHANGES }))),
      el("ul", { class: "families" }, sync.families.map(familyNode)))));
}

/** The list, the newest first. `reveal(number)` on the returned node shows enough of the list. */
export function timelineList(syncs) {
  const limit = slowLimit(syncs);
  const longest = Math.max(...syncs.map(took), 1000);
  const newest = [...syncs].reverse();
  const list = el("ol", { class: "syncs" });
  let shown = 0;
  const more = el("li", { class: "more-syncs" }, el("button", { class: "button quiet", type: "button", on: { click: () => grow(shown + 200) } }, t("timeline.more")));
  function grow(to) {
    more.remove();
    for (; shown < Math.min(to, newest.length); shown += 1) list.append(syncNode(newest[shown], longest, limit));
    if (shown < newest.length) list.append(more);
  }
  grow(PAGE);
  list.reveal = (number) => {
    const index = newest.findIndex((sync) => sync.number === number);
    if (index >= shown) grow(index + 1);
    list.children[index]?.querySelector("details")?.setAttribute("open", "");
  };
  return list;
}
