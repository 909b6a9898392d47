// Continuous connections of the demo, which show the effect of changes in the cluster.

import { act } from "./api.js";
import { linearScale, timeChart } from "./chart.js";
import { el, icon, notice, replace, svg } from "./dom.js";
import { clock, count, rate } from "./format.js";
import { t } from "./i18n.js";

/** The time between two requests in milliseconds, and the connections of each: effects of a tenth of a second are visible. */
const PAUSE = 100;
const BATCH = 4;

/** Period of one sample of the chart, in milliseconds. */
const STEP = 500;

/** Period of the chart, in milliseconds. */
const WINDOW = 60_000;

/** Approximate width of letters and of Chinese characters in labels of marks, in pixels, and the number of lines of labels. */
const LETTER = 6.5;
const WIDE = 11;
const LINES = 7;

/** Kept while another view is shown: the stream continues, so that a repair can be observed in the syncs. */
const state = { body: null, service: null, samples: [], marks: [], pods: new Map(), failed: new Map(), failing: 0, since: 0, last: null, current: { begin: 0, good: 0, bad: 0 }, error: null };
let timer = null;
let draw = () => {};

function add(map, list, key) {
  for (const one of list ?? []) map.set(one[key], (map.get(one[key]) ?? 0) + one.connections);
}

const sum = (list) => (list ?? []).reduce((total, { connections }) => total + connections, 0);

async function send() {
  const { body } = state;
  const begin = Date.now();
  try {
    const answer = await act("connect", { ...body, count: BATCH });
    if (state.body !== body) return;
    const end = Date.now();
    const bad = sum(answer.failed);
    add(state.pods, answer.results, "pod");
    add(state.failed, answer.failed, "error");
    if (bad > 0) state.failing += end - (state.last ?? begin);
    state.last = end;
    state.current.good += sum(answer.results);
    state.current.bad += bad;
    state.error = null;
    if (end - state.current.begin >= STEP) {
      state.samples.push({ ...state.current, end });
      state.current = { begin: end, good: 0, bad: 0 };
      state.samples = state.samples.filter((sample) => sample.end > end - WINDOW);
      state.marks = state.marks.filter(({ at }) => at > end - WINDOW);
      draw();
    }
  } catch (error) {
    state.error = error.message;
    draw();
  }
  if (state.body !== body) return;
  timer = setTimeout(send, PAUSE);
}

/** Starts a stream, which replaces another one. */
function start(service, body) {
  stop();
  const now = Date.now();
  Object.assign(state, { body, service, samples: [], marks: [], pods: new Map(), failed: new Map(), failing: 0, since: now, last: now,
    current: { begin: now, good: 0, bad: 0 }, error: null });
  send();
}

function stop() {
  clearTimeout(timer);
  state.body = null;
}

/** Marks an action on the cluster, with its time. */
export function mark(text) {
  if (state.body) state.marks.push({ at: Date.now(), text });
}

/** The marks, with their labels in the first line with free space. */
function markNodes(x, end, bottom) {
  const lines = [];
  return state.marks.filter(({ at }) => at > end - WINDOW).map(({ at, text }) => {
    const width = [...text].reduce((sum, letter) => sum + (letter > "\u2e80" ? WIDE : LETTER), 4);
    const isLate = x(at) + width > x(end);
    const [left, right] = isLate ? [x(at) - width, x(at)] : [x(at), x(at) + width];
    const free = lines.findIndex((boxes) => boxes.every((box) => box.right < left || box.left > right));
    const line = free < 0 ? lines.push([]) - 1 : free;
    lines[line].push({ left, right });
    return [
      svg("line", { class: "flow-mark", x1: x(at), x2: x(at), y1: 4, y2: bottom }),
      svg("text", { class: "tick mark-label", x: x(at) + (isLate ? -4 : 4), y: 13 + (line % LINES) * 14, "text-anchor": isLate ? "end" : "start" }, text)];
  });
}

function chart() {
  const end = Date.now();
  const perSecond = ({ begin, end: stop, good, bad }) => ((good + bad) * 1000) / Math.max(1, stop - begin);
  const scale = linearScale(Math.max(10, ...state.samples.map(perSecond)), rate);
  const area = ({ x, y, bottom }) => [
    state.samples.map((sample) => {
      const [left, right] = [x(Math.max(sample.begin, end - WINDOW)), x(sample.end)];
      const all = perSecond(sample);
      const bad = (all * sample.bad) / Math.max(1, sample.good + sample.bad);
      const box = (kind, from, to) => to > from && svg("rect", { class: `flow-${kind}`, x: left, width: Math.max(1, right - left), y: y(to), height: y(from) - y(to) });
      return [box("bad", 0, bad), box("good", bad, all)];
    }),
    markNodes(x, end, bottom),
  ];
  return timeChart({ label: t("stream.label"), unit: t("stream.unit"), start: end - WINDOW, end, scale, height: 130, draw: area });
}

function summary() {
  const good = [...state.pods.values()].reduce((total, one) => total + one, 0);
  const bad = [...state.failed.values()].reduce((total, one) => total + one, 0);
  return [
    el("p", { class: "flow-summary" }, t("stream.since", { time: clock(state.since) }), " ",
      el("b", { class: "flow-answered" }, t("stream.answered", { count: count(good) })), t("list.separator"),
      el("b", { class: bad > 0 ? "flow-failed bad" : "flow-failed" }, t("stream.failed", { count: count(bad) }))),
    el("p", {}, [...state.pods].sort().map(([pod, connections]) => el("span", { class: "chip" }, el("b", {}, pod), ` ${count(connections)}`))),
    bad > 0 && notice("error", icon("cross"), t("stream.why", {
      why: [...state.failed].map(([error, connections]) => `${count(connections)} × ${t(FAILURES[error] ?? error)}`).join(t("list.separator")),
      seconds: (state.failing / 1000).toFixed(1) })),
    state.error && notice("error", state.error),
  ];
}

/** The client's view of a failure. */
const FAILURES = { refused: "failure.refused", "no reply": "failure.noReply", unreachable: "failure.unreachable", reset: "failure.reset" };

/** A failure in words. */
export function failureText(error) {
  return t(FAILURES[error] ?? error);
}

/** Returns the button and the output of the stream. `read()` returns the connection's body. */
export function streamControl({ service, read, disabled }) {
  const output = el("div", { class: "flow-stream" });
  const button = el("button", { class: "button", type: "button", id: "keep-sending", disabled });
  const isMine = () => state.body !== null && state.service === service;
  const label = () => {
    replace(button, icon(isMine() ? "cross" : "bolt"), t(isMine() ? "stream.stop" : "stream.start"));
    button.setAttribute("aria-pressed", String(isMine()));
  };
  button.addEventListener("click", () => {
    if (isMine()) stop();
    else start(service, read());
    label();
    draw();
  });
  draw = () => {
    if (state.service === service && state.samples.length > 0) replace(output, chart(), summary());
  };
  label();
  draw();
  return { button, output };
}
