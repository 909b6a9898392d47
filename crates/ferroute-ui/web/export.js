// The path of a packet as a standalone SVG file: with the packet, the result and the steps.

import { svg } from "./dom.js";
import { t } from "./i18n.js";
import { journeyLines } from "./journey.js";
import { drawPath } from "./path.js";
import { owned, sentence, verdictOf } from "./words.js";

const WIDTH = 1072;
const LINE = 20;

/** Properties that the styles of the page determine; the file must contain them. */
const PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "opacity"];

function carryStyles(node) {
  const style = getComputedStyle(node);
  for (const property of PROPERTIES) node.setAttribute(property, style.getPropertyValue(property));
  for (const child of node.children) if (child.tagName !== "title") carryStyles(child);
}

/** The steps that are relevant in a file: rules that match, changes, verdicts. */
function listed(trace, walked) {
  return walked.steps.map((item) =>
    item.event === "rule" ? `${item.chain} ${item.number}: ${item.text}` : sentence(trace, item));
}

function draw({ trace, way, walked }) {
  const path = drawPath({ trace, way, walked, current: null, narrow: false }).firstChild;
  const height = Number(path.getAttribute("viewBox").split(" ")[3]);
  const { packet } = trace;
  const verdict = verdictOf(trace, way);
  const lines = [...journeyLines(trace, way), ...listed(trace, walked)];
  const total = 110 + height + lines.length * LINE + 40;
  const text = (x, y, kind, content) => svg("text", { x, y, class: kind }, content);
  path.setAttribute("x", "0");
  path.setAttribute("y", "90");
  path.setAttribute("width", String(WIDTH));
  path.setAttribute("height", String(height));
  return svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${WIDTH} ${total}`, width: WIDTH, height: total, class: "exported" },
    svg("title", {}, t("packet.title")),
    svg("rect", { width: WIDTH, height: total, class: "export-paper" }),
    text(24, 36, "export-title", `${packet.protocol} ${owned(trace, packet.source)} → ${owned(trace, packet.destination)}`),
    text(24, 62, "export-text", `${verdict.title}${verdict.note ? ` – ${verdict.note}` : ""}`),
    text(24, 84, "export-note", `${trace.node} · ${trace.mode} · ${t(`rules.${trace.rules}`)}`),
    path,
    lines.map((line, index) => text(24, 120 + height + index * LINE, "export-line", `${index + 1}. ${line.length > 150 ? `${line.slice(0, 149)}…` : line}`)));
}

/** Returns the file's content. */
export function pathFile(answer) {
  const drawing = draw(answer);
  const stage = document.createElement("div");
  stage.className = "export-stage";
  stage.append(drawing);
  document.body.append(stage);
  carryStyles(drawing);
  stage.remove();
  return new XMLSerializer().serializeToString(drawing);
}

/** Saves the file. */
export function exportPath(answer) {
  const url = URL.createObjectURL(new Blob([pathFile(answer)], { type: "image/svg+xml" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "packet.svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
