// The drawing of a packet's path through the hooks of the kernel, in the usual form of netfilter diagrams. If there is little
// space, only the visited stages are drawn, from top to bottom.

import { el, svg } from "./dom.js";
import { hostOf } from "./format.js";
import { t } from "./i18n.js";
import { LINKS } from "./walk.js";
import { effectLabel, verdictOf } from "./words.js";

/** Centre, width and height of each stage in the wide drawing. */
const WIDE = {
  sender: [64, 62, 126, 76],
  prerouting: [236, 62, 176, 92],
  routing: [362, 62, 48, 48],
  forward: [578, 62, 176, 92],
  postrouting: [808, 62, 176, 92],
  receiver: [1006, 62, 130, 76],
  input: [362, 226, 176, 92],
  process: [578, 226, 176, 92],
  output: [808, 226, 176, 92],
  routing2: [808, 144, 38, 38],
};
const WIDTH = 1072;
const HEIGHT = 282;
const NARROW = 340;

const ROUND = new Set(["routing", "routing2"]);

/** Approximate width of a character in a stage. */
const CHARACTER = 7;

/** Returns the text as far as it fits into a stage of this width; the complete text is shown on hover. */
function shorten(text, width) {
  const fit = Math.floor(width / CHARACTER);
  return text.length > fit ? [svg("title", {}, text), `${text.slice(0, fit - 1)}…`] : text;
}

/** The positions of all stages, and the size of the drawing. */
function layout(stages, narrow) {
  if (!narrow) return { places: WIDE, width: WIDTH, height: HEIGHT };
  const places = {};
  let top = 8;
  for (const { place } of stages) {
    if (places[place]) continue;
    const height = ROUND.has(place) ? 40 : 78;
    places[place] = [NARROW / 2, top + height / 2, ROUND.has(place) ? 40 : NARROW - 24, height];
    top += height + 26;
  }
  return { places, width: NARROW, height: top - 18 };
}

/** A line from one stage to the next, along the side that faces it. */
function line([x1, y1, w1, h1], [x2, y2, w2, h2]) {
  if (Math.abs(x1 - x2) < 1) {
    const down = y2 > y1 ? 1 : -1;
    return `M${x1} ${y1 + (down * h1) / 2}L${x2} ${y2 - (down * h2) / 2}`;
  }
  const right = x2 > x1 ? 1 : -1;
  const [start, stop] = [x1 + (right * w1) / 2, x2 - (right * w2) / 2];
  const middle = (start + stop) / 2;
  return y1 === y2 ? `M${start} ${y1}L${stop} ${y2}` : `M${start} ${y1}C${middle} ${y1} ${middle} ${y2} ${stop} ${y2}`;
}

function texts([x, y, width], lines) {
  const gap = 17;
  const top = y - ((lines.length - 1) * gap) / 2;
  return lines.map(([text, kind], index) =>
    svg("text", { x, y: top + index * gap, class: kind, "text-anchor": "middle", "dominant-baseline": "central" }, shorten(text, width)));
}

/** The lines of text in a stage: its name, and its events. */
function lines(place, visits, trace, way) {
  const packet = trace.packet;
  const owner = (address) => (trace.names?.[address] ?? "").replace(/^(pod|node) /, "").split("/").at(-1);
  if (place === "sender" || (place === "process" && packet.origin === "local" && visits.length === 0)) {
    const local = packet.origin === "local";
    return [[t("path.sender"), "stage-name"], ...(local ? [] : [[owner(hostOf(packet.source)) || hostOf(packet.source), "stage-effect"]])];
  }
  if (place === "receiver") {
    const isOneOf = way.choices?.length > 1;
    const who = way.verdict !== "delivered" || way.interface === null ? ""
      : isOneOf ? t("path.oneOf", { count: way.choices.length }) : owner(hostOf(way.to)) || way.to;
    return [[t("path.receiver"), "stage-name"], ...(who ? [[who, "stage-effect"]] : [])];
  }
  const shown = visits.flatMap(({ effects }) => effects).filter(({ effect }) => effect !== "accept").map(effectLabel);
  const more = shown.length > 3 ? [...shown.slice(0, 2), t("path.more", { count: shown.length - 2 })] : shown;
  const proxy = visits.find((visit) => visit.proxy)?.proxy;
  const name = place === "process" ? (proxy ?? t("path.process")) : place.toUpperCase();
  return [[name, "stage-name"], ...more.map((text) => [text, "stage-effect"])];
}

/** The style of a stage: not on the path, on the path, the end of a packet that is not delivered, or the current stage. */
function stageClass(place, order, current, stages, way) {
  const visited = order.includes(place);
  const isEnd = place === stages.at(-1).place;
  const ended = isEnd && way.verdict !== "delivered" ? " stage-stopped" : isEnd ? " stage-delivered" : "";
  return `stage ${visited ? "stage-visited" : ""}${ended}${place === current ? " stage-current" : ""}`;
}

function drawStage(place, position, kind, content) {
  const [x, y, width, height] = position;
  const shape = ROUND.has(place)
    ? svg("path", { d: `M${x} ${y - height / 2}L${x + width / 2} ${y}L${x} ${y + height / 2}L${x - width / 2} ${y}Z` })
    : svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 10 });
  const label = ROUND.has(place)
    ? svg("text", { x, y, class: "stage-route", "text-anchor": "middle", "dominant-baseline": "central" }, "?")
    : texts(position, content);
  return svg("g", { class: kind, "data-place": place }, svg("title", {}, t(`place.${place}`)), shape, label);
}

/**
 * Draws the path of a packet.
 *
 * `walked` is the walk of the branch `way`; `current` is the stage of the current step, or null for the whole path.
 */
export function drawPath({ trace, way, walked, current, narrow }) {
  const { stages } = walked;
  const { places, width, height } = layout(stages, narrow);
  const order = stages.map(({ place }) => place);
  const hops = order.slice(1).map((place, index) => [order[index], place]).filter(([from, to]) => from !== to);
  const isHop = ([from, to]) => hops.some(([start, stop]) => start === from && stop === to);
  const known = narrow ? [] : LINKS.filter((link) => !isHop(link) && places[link[0]] && places[link[1]]);
  const drawing = svg("svg", {
    class: `path-drawing ${narrow ? "path-narrow" : ""}`, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": t("path.label", { stages: order.map((place) => t(`place.${place}`)).join(" → "), end: verdictOf(trace, way).title }),
  },
  known.map(([from, to]) => svg("path", { class: "link", d: line(places[from], places[to]) })),
  hops.filter(([from, to]) => places[from] && places[to]).map(([from, to]) =>
    svg("path", { class: "link link-taken", d: line(places[from], places[to]) })),
  Object.keys(places).map((place) => drawStage(place, places[place], stageClass(place, order, current, stages, way),
    lines(place, stages.filter((stage) => stage.place === place), trace, way))));
  return el("div", { class: "path-box" }, drawing);
}
