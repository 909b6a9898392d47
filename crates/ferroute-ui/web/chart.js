// Charts over time: an axis with times, an axis with units, and the drawing between them.

import { el, replace, svg } from "./dom.js";
import { language } from "./i18n.js";

/** Steps of a time axis, in seconds. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** The space of the axes and of half a time at the right end, and the minimum distance between two times, in pixels. */
const LEFT = 58;
const RIGHT = 28;
const TOP = 8;
const BOTTOM = 22;
const TIME_DISTANCE = 72;

function timeText(time, step) {
  const options = step >= 86_400 ? { month: "short", day: "numeric" }
    : { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }), hourCycle: "h23" };
  return new Intl.DateTimeFormat(language(), options).format(time);
}

/** Returns the round times of an axis, in local time. */
function timeTicks(start, end, width) {
  const most = Math.max(1, Math.floor(width / TIME_DISTANCE));
  const step = STEPS.find((one) => (end - start) / 1000 / one <= most) ?? STEPS.at(-1) * Math.ceil((end - start) / 1000 / STEPS.at(-1) / most);
  const zone = new Date(start).getTimezoneOffset() * 60_000;
  const first = Math.ceil((start - zone) / 1000 / step) * step * 1000 + zone;
  const ticks = [];
  for (let time = first; time <= end; time += step * 1000) ticks.push([time, timeText(time, step)]);
  return ticks;
}

/** A linear scale from 0, with round values. */
export function linearScale(most, text) {
  const rough = most / 3 || 1 / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((one) => one >= rough);
  const top = Math.max(step, Math.ceil(most / step) * step);
  const ticks = [];
  for (let value = 0; value <= top * 1.001; value += step) ticks.push([value, text(value)]);
  return { place: (value) => value / top, ticks };
}

/** A logarithmic scale in whole powers of ten. */
export function logScale(least, most, text) {
  const bottom = Math.floor(Math.log10(least));
  const top = Math.max(bottom + 1, Math.ceil(Math.log10(most)));
  const ticks = [];
  for (let power = bottom; power <= top; power += 1) ticks.push([10 ** power, text(10 ** power)]);
  return { place: (value) => Math.max(0, (Math.log10(Math.max(value, 10 ** bottom)) - bottom) / (top - bottom)), ticks };
}

/**
 * Returns a chart that follows its width.
 *
 * `label` describes it, `unit` is the unit of its vertical axis, `start` and `end` are times in milliseconds, `scale` is one of
 * the scales above. `draw({ x, y, bottom })` returns the drawing between the axes.
 */
export function timeChart({ label, unit, start, end, scale, height = 150, draw }) {
  const drawing = svg("svg", { height, role: "img", "aria-label": label });
  const figure = el("div", { class: "time-chart" }, el("p", { class: "chart-unit", "aria-hidden": "true" }, unit), drawing);
  const render = () => {
    const width = Math.max(200, figure.clientWidth);
    const [right, bottom] = [width - RIGHT, height - BOTTOM];
    const x = (time) => LEFT + ((time - start) / Math.max(1, end - start)) * (right - LEFT);
    const y = (value) => bottom - scale.place(value) * (bottom - TOP);
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("width", width);
    replace(drawing,
      scale.ticks.map(([value, text]) => [
        svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick tick-value", x: LEFT - 8, y: y(value), "text-anchor": "end", "dominant-baseline": "central" }, text)]),
      timeTicks(start, end, right - LEFT).map(([time, text]) => [
        svg("line", { class: "tick-mark", x1: x(time), x2: x(time), y1: bottom, y2: bottom + 4 }),
        svg("text", { class: "tick tick-time", x: x(time), y: height - 5, "text-anchor": "middle", data: { time } }, text)]),
      draw({ x, y, bottom }));
  };
  const observer = new ResizeObserver(() => (figure.isConnected ? render() : observer.disconnect()));
  observer.observe(figure);
  return figure;
}
