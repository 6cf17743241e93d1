// Line and bar charts as the report draws them: SVG, with the numbers in a table that can be unfolded.

import { make, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 220, 46, 10, 10, 40];
const DASHES = ["", "6 3", "2 3"];

/** @param {number} value */
const short = (value) => Math.abs(value) >= 1000 ? value.toLocaleString("en") : String(Number(value.toPrecision(3)));

/** Round numbers from 0 to at least `high`. @param {number} high */
function ticks(high) {
  const rough = (high || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? rough;
  const found = [];
  for (let n = 0; n * step < high + step * 0.999; n++) found.push(n * step);
  return found;
}

/** Axes, grid and labels. @param {any[]} parts @param {number[]} marks @param {[number, string][]} below @param {string} xName */
function frame(parts, marks, below, xName) {
  const top = marks[marks.length - 1] || 1;
  const y = (/** @type {number} */ value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  for (const mark of marks) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }));
    parts.push(svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  for (const [x, label] of below) parts.push(svg("text", { x, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, label));
  parts.push(svg("text", { class: "name", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xName));
  return y;
}

/** @param {string} title @param {string} label @param {any[]} parts @param {string[]} names @param {string[]} header @param {string[][]} rows @param {string} [note] */
function figure(title, label, parts, names, header, rows, note = "") {
  const keys = names.map((name, n) => make("li", {}, svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" },
    svg("path", { class: `line c${n}`, "stroke-dasharray": DASHES[n], d: "M0,5L22,5" })), name));
  return make("figure", {},
    make("h3", { text: title }),
    make("ul", { class: "legend" }, ...keys),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...parts),
    note ? make("figcaption", { text: note }) : null,
    make("details", {}, make("summary", { text: "Numbers" }), table(header, rows, title)));
}

/**
 * A table that scrolls sideways if it is too wide; the first column has names, the others numbers.
 * @param {string[]} header @param {string[][]} rows @param {string} label
 */
export function table(header, rows, label) {
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    make("table", {},
      make("thead", {}, make("tr", {}, ...header.map((cell, n) => make("th", { scope: "col", class: n ? "n" : null, text: cell })))),
      make("tbody", {}, ...rows.map(([first, ...rest]) => make("tr", {}, make("th", { scope: "row", text: first }),
        ...rest.map((cell) => make("td", { class: "n", text: cell })))))));
}

/**
 * @param {string} title @param {string} xName @param {number[]} xs
 * @param {{name: string, ys: number[]}[]} series @param {string} [note]
 */
export function lineChart(title, xName, xs, series, note) {
  const parts = /** @type {any[]} */ ([]);
  const x = (/** @type {number} */ value) => LEFT + ((value - xs[0]) / Math.max(1e-9, xs[xs.length - 1] - xs[0])) * (WIDTH - RIGHT - LEFT - 8) + 4;
  const shown = ticksBetween(xs);
  const y = frame(parts, ticks(Math.max(...series.flatMap((one) => one.ys), 1e-9)), shown.map((value) => [x(value), String(value)]), xName);
  series.forEach((one, n) => {
    parts.push(svg("path", {
      class: `line c${n}`, "stroke-dasharray": DASHES[n],
      d: `M${one.ys.map((value, at) => `${x(xs[at]).toFixed(1)},${y(value).toFixed(1)}`).join("L")}`,
    }));
    one.ys.forEach((value, at) => parts.push(svg("circle", { class: `f${n}`, cx: x(xs[at]), cy: y(value), r: 2.6 })));
  });
  const ends = series.map((one) => `${one.name} from ${short(one.ys[0])} to ${short(one.ys[one.ys.length - 1])}`).join(", ");
  return figure(title, `Line chart of ${title} by ${xName}: ${ends}`, parts, series.map((one) => one.name),
    [xName, ...series.map((one) => one.name)], xs.map((value, at) => [String(value), ...series.map((one) => one.ys[at].toFixed(4))]), note);
}

/** Of the values on an axis, those that have room for their number. @param {number[]} xs */
function ticksBetween(xs) {
  const span = xs[xs.length - 1] - xs[0] || 1;
  const kept = [xs[0]];
  for (const value of xs.slice(1)) if ((value - kept[kept.length - 1]) / span > 0.07) kept.push(value);
  return kept;
}

/**
 * @param {string} title @param {string} xName @param {string[]} groups
 * @param {{name: string, ys: number[]}[]} series @param {string[]} sizes @param {string} sizeName @param {string} [note]
 */
export function barChart(title, xName, groups, series, sizes, sizeName, note) {
  const parts = /** @type {any[]} */ ([]);
  const room = (WIDTH - RIGHT - LEFT) / groups.length;
  const y = frame(parts, ticks(Math.max(...series.flatMap((one) => one.ys), 1e-9)),
    groups.map((name, n) => [LEFT + (n + 0.5) * room, name]), xName);
  const width = (room - 12) / series.length;
  series.forEach((one, n) => one.ys.forEach((value, group) => parts.push(svg("rect", {
    class: `f${n}`, x: LEFT + group * room + 6 + n * width, y: y(value), width: Math.max(1, width - 1),
    height: Math.max(0, HEIGHT - BOTTOM - y(value)),
  }))));
  return figure(title, `Bar chart of ${title} by ${xName}`, parts, series.map((one) => one.name),
    [xName, sizeName, ...series.map((one) => one.name)],
    groups.map((name, at) => [name, sizes[at], ...series.map((one) => one.ys[at].toFixed(4))]), note);
}

/** A line without axes: the newest values of something. @param {number[]} values @param {string} label */
export function sparkline(values, label) {
  const most = Math.max(...values, 1e-9);
  const step = 240 / Math.max(1, values.length - 1);
  const points = values.map((value, n) => `${(n * step).toFixed(1)},${(46 - (value / most) * 42).toFixed(1)}`).join("L");
  return svg("svg", { viewBox: "0 0 240 50", class: "spark", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("path", { class: "grid", d: "M0,48L240,48" }),
    svg("path", { class: "line c0", d: `M${points}`, "vector-effect": "non-scaling-stroke" }));
}
