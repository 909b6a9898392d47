// Building blocks for the page. Names come from the users of a cluster, so text is inserted only as text nodes and
// attributes: no part of this program parses markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Sets properties of an element: `class`, `on` (listeners by event), `data` (data attributes), all others as an
 * attribute. A value of null, undefined or false leaves the attribute out.
 */
function decorate(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Appends children: nodes, texts, nested arrays; null and false are skipped, so that callers can write conditions. */
function fill(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Creates an HTML element. */
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  decorate(node, attributes);
  return fill(node, children);
}

/** Creates an SVG element. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  decorate(node, attributes);
  return fill(node, children);
}

/** Replaces all children of a node. */
export function replace(node, ...children) {
  node.replaceChildren();
  return fill(node, children);
}

/** The outlines of all icons, on a grid of 16. */
const ICONS = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.6-1.4L14 14",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7Z",
  auto: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 0v12M8 5.500l4.200-2M8 9l5.800-2.500M8 12.500l4.800-2.200",
  check: "M3 8.500l3.200 3.200L13 4.800",
  cross: "M4 4l8 8M12 4l-8 8",
  minus: "M3.500 8h9",
  warn: "M8 2.500 14.500 13.500h-13ZM8 6.500v3.200M8 11.600v.2",
  right: "M6 3.500 10.500 8 6 12.500",
  left: "M10 3.500 5.500 8l4.500 4.500",
  down: "M3.500 6 8 10.500 12.500 6",
  pod: "M8 1.800 13.500 5v6L8 14.200 2.500 11V5Zm0 6.200v6M8 8 2.600 5M8 8l5.400-3",
  node: "M2.500 3h11v4h-11ZM2.500 9h11v4h-11ZM5 5v.1M5 11v.1",
  outside: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2ZM2.200 8h11.600M8 2c2.200 2 2.800 4 2.800 6S10.200 12 8 14C5.800 12 5.200 10 5.200 8S5.800 4 8 2Z",
  download: "M8 2v8M4.500 7 8 10.500 11.500 7M3 13.500h10",
  arrow: "M2.500 8h11M9.500 4l4 4-4 4",
  bolt: "M9 1.500 3.500 9H8l-1 5.500L12.500 7H8Z",
};

/** Returns an icon, which is decoration: it always accompanies a text or an accessible name. */
export function icon(name) {
  const outline = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, outline);
}

/** Announces a change to screen readers. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Reports whether the user prefers reduced motion. */
export function prefersStillness() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Returns a box with a title, for the sections of a view. */
export function card(title, attributes, ...children) {
  const heading = title && el("h2", { class: "card-title" }, title);
  return el("section", { ...attributes, class: `card ${attributes?.class ?? ""}` }, heading, ...children);
}

/** Returns a message for content that is missing, loading or failed. */
export function notice(kind, ...children) {
  return el("p", { class: `notice notice-${kind}`, role: kind === "error" ? "alert" : null }, ...children);
}

/** Returns a group of buttons, one of which is pressed. `choices` are pairs of value and text. */
export function segments(label, choices, current, choose) {
  const buttons = choices.map(([value, text]) =>
    el("button", {
      type: "button", "aria-pressed": String(value === current), data: { value },
      on: { click: () => choose(value) },
    }, text));
  return el("div", { class: "segments", role: "group", "aria-label": label }, ...buttons);
}
