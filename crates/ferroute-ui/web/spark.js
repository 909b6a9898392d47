// Lines of rates over the last minutes.

import { svg } from "./dom.js";

/** Draws a line of rates; decoration, because the number is beside it. */
export function sparkline(history, width = 84, height = 22) {
  const samples = history?.length > 1 ? history : [0, 0];
  const top = Math.max(...samples, 1e-9);
  const points = samples.map((value, index) =>
    `${((index / (samples.length - 1)) * width).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    history?.length > 1 && svg("polygon", { points: `0,${height} ${points.join(" ")} ${width},${height}` }),
    svg("polyline", { points: points.join(" ") }));
}
