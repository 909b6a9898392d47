// Connections as the kernel tracks them: client, Service and endpoint of each, and failures. They are received only
// while a view shows them.

import { flowsAddress } from "./api.js";
import { el, icon, notice } from "./dom.js";
import { count, duration, socket } from "./format.js";
import { t } from "./i18n.js";
import { translate } from "./texts.js";

const state = { available: null, reason: null, summary: null, stream: null, timestamps: false, lost: {} };
const readers = new Set();

function emit() {
  for (const reader of [...readers]) reader();
}

function receive(event, handler) {
  state.stream.addEventListener(event, (message) => { handler(JSON.parse(message.data)); emit(); });
}

function open() {
  state.stream = new EventSource(flowsAddress());
  receive("flows-start", ({ available, reason, summary, start, lost }) =>
    Object.assign(state, { available, reason, summary: summary ?? state.summary, timestamps: start?.timestamps ?? false, lost: lost ?? {} }));
  receive("flows-lost", (lost) => Object.assign(state, { lost }));
  receive("flows-summary", (summary) => Object.assign(state, { available: true, summary }));
  receive("flows-unavailable", ({ reason }) => Object.assign(state, { available: false, reason }));
}

/** Calls a handler whenever the summary changes; returns a function that ends it. */
export function onFlows(handler) {
  readers.add(handler);
  if (!state.stream) open();
  return () => {
    readers.delete(handler);
    if (readers.size > 0) return;
    state.stream.close();
    state.stream = null;
  };
}

/** The reason why there are no flows; null if there are flows, or if this is not known yet. */
export function flowsMissing() {
  return state.available === false ? translate(state.reason ?? "") : null;
}

/** Notices of the reason why there are no more flows, and of flows that are missing among the shown ones. */
export function flowNotices() {
  const missing = flowsMissing();
  const lost = Object.entries({ ...state.lost, omitted: state.summary?.omitted ?? 0 }).filter(([, number]) => number > 0);
  const words = lost.map(([kind, number]) => t(`flow.lost.${kind}`, { count: count(number) })).join(t("list.separator"));
  return [missing && notice("info", t("unavailable", { reason: missing })),
    lost.length > 0 && notice("warning", icon("warn"), t("flow.lost", { list: words }))].filter(Boolean);
}

/** The connections of the last minutes that failed. */
export function failures({ unanswered, refused, reset, rejected, dropped }) {
  return unanswered + refused + reset + rejected + dropped;
}

/** The failures in words: `3 refused, 1 unanswered`. */
export function failureWords(counts) {
  const kinds = ["refused", "unanswered", "reset", "rejected", "dropped"].filter((kind) => counts[kind] > 0);
  return kinds.map((kind) => t(`flow.${kind}`, { count: count(counts[kind]) })).join(t("list.separator"));
}

/** Returns the flows of the last minutes through a Service, or all of them. */
export function edgesOf(service) {
  const edges = state.summary?.edges ?? [];
  return service ? edges.filter(({ servicePort }) => servicePort === service || servicePort?.startsWith(`${service}:`)) : edges;
}

/** Adds the numbers of several flows. */
export function total(edges) {
  const sum = { connections: 0, unanswered: 0, refused: 0, reset: 0, rejected: 0, dropped: 0, answered: 0, answerSeconds: 0 };
  for (const edge of edges) for (const name of Object.keys(sum)) sum[name] += edge[name] ?? 0;
  return sum;
}

/** The time for which the flows of the last minutes were received, in seconds. */
export function flowWindow() {
  return state.summary?.windowSeconds ?? 0;
}

/** The name of one end of a flow, or its address if it has no name. */
export function peerName({ address, port, name }) {
  return name ?? (port ? socket(address, port) : address);
}

/** The mean time to the first answer, in words; null if it is unknown. */
export function answerTime({ answered, answerSeconds }) {
  if (answered === 0) return null;
  const mean = Math.round((answerSeconds / answered) * 1e6);
  // Without the kernel's times, the times of receiving its events are used: both events of a quick answer arrive together.
  return mean < 1000 && !state.timestamps ? null : duration(mean);
}

/** A figure of success and failure: `120 connections, 3 refused`. */
export function outcome(counts) {
  const failed = failures(counts);
  return el("span", { class: failed > 0 ? "outcome bad" : "outcome" }, icon(failed > 0 ? "warn" : "check"),
    t("flow.connections", { count: count(counts.connections) }), failed > 0 && `${t("list.separator")}${failureWords(counts)}`);
}
