// A map of the items: each a point, near ones alike. Drawn on a canvas, all points anew for every frame.

import { address, json, newest } from "./api.js";
import { byId, count, make, percent, some } from "./dom.js";
import { openItem } from "./drawer.js";
import { Grid } from "./grid.js";
import { on, state } from "./state.js";

const SIZE = 65535; // coordinates are from 0 to this
const REACH = 14; // pixels between the pointer and the item it means
const FEW = 4000; // so many points are drawn as round discs, more as squares of pixels
const NAMED = 18; // so many points in view have their names beside them
const STEPS = 5; // of the colours of popularity

/** @type {any} */
let data = null;
/** @type {Grid} */
let grid;
/** Positions of the items, the most popular last, so that they are on top. @type {Int32Array} */
let order;
/** Position of each item by its id. @type {Map<any, number>} */
let places = new Map();
/** What is in the middle of the canvas, and how many pixels (of CSS) a unit has. */
const view = { x: SIZE / 2, y: SIZE / 2, scale: 0.01, least: 0.01 };
/** The colour of each point as a number of red, green, blue and alpha in the order of the machine. @type {Uint32Array} */
let colours;
/** The class of each point, and the colour of each class. @type {Uint8Array} */
let classes;
/** @type {string[]} */
let palette = [];
/** An item that is to be shown as soon as the map is there. @type {any} */
let pending = null;
/** @type {number} */
let selected = -1;
let asked = 0;
/** Whether keys are used: then the middle is marked and named. */
let byKeys = false;
/** @type {ImageData | null} */
let image = null;
/** @type {(panel: string) => void} */
let open = () => {};

const canvas = () => /** @type {HTMLCanvasElement} */ (byId("plane"));
const visible = () => !byId("map").hidden;

// ------------------------------------------------------------------------ data

const load = newest(
  async (signal) => json(address("v1/map", { model: state.run }), { signal }),
  (answer) => {
    data = answer;
    data.x = Uint16Array.from(answer.x);
    data.y = Uint16Array.from(answer.y);
    data.span = [data.x, data.y].map((values) => values.reduce((a, b) => Math.max(a, b), 1));
    grid = new Grid(data.x, data.y, SIZE);
    order = Int32Array.from(answer.items, (_, n) => n).sort((a, b) => data.popularity[a] - data.popularity[b] || a - b);
    places = new Map(answer.items.map((/** @type {any} */ item, /** @type {number} */ n) => [item, n]));
    byId("colour").replaceChildren(
      ...(data.group ? [make("option", { value: "group", text: data.column })] : []),
      make("option", { value: "popularity", text: "popularity" }));
    const less = data.items.length < data.total ? ` The ${count(data.items.length)} most popular of ${count(data.total)} items.` : "";
    byId("map-note").textContent =
      `Near items have similar vectors. The two axes hold ${percent(data.variance[0] + data.variance[1])} of the vectors' variance, so what is near here may still differ.${less}`;
    byId("map-status").textContent = "";
    fit();
    paint();
    showAll();
    showPending();
    document.body.dataset.map = `${data.model} ${data.version}`;
  },
);

/** Load the map if the one that is there is of another run or version. */
function refresh() {
  if (!visible()) return;
  const run = state.runs.find((one) => one.model === state.run);
  if (run?.dim === 0) {
    data = null;
    canvas().width = canvas().width; // clears it
    for (const name of ["map-legend", "map-note", "colour"]) byId(name).replaceChildren();
    byId("map-status").textContent = "This run ranks by weights between items. It has no vectors, so there is no map.";
  } else if (!data || data.model !== state.run || data.version !== run?.version) {
    byId("map-status").textContent = "Computing the map …";
    load();
  } else {
    fit();
    showPending();
    draw();
  }
}

function showPending() {
  if (pending === null || !data) return;
  const at = places.get(pending);
  pending = null;
  if (at === undefined) {
    byId("map-status").textContent = "This item is not on the map, which has the most popular ones.";
    return;
  }
  selected = at;
  view.x = data.x[at];
  view.y = data.y[at];
  view.scale = Math.max(view.scale, view.least * 4);
  draw();
}

// ------------------------------------------------------------------------ colours

const css = (/** @type {string} */ name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @param {string} hex @returns {[number, number, number]} */
const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** @param {string} hex */
function packed(hex) {
  const [red, green, blue] = parts(hex);
  return new Uint32Array(new Uint8ClampedArray([red, green, blue, 255]).buffer)[0];
}

/** A colour between two. @param {string} low @param {string} high @param {number} share */
function between(low, high, share) {
  const ends = [parts(low), parts(high)];
  return `#${[0, 1, 2].map((n) => Math.round(ends[0][n] + (ends[1][n] - ends[0][n]) * share).toString(16).padStart(2, "0")).join("")}`;
}

/** Give every point its colour, and write the legend. */
function paint() {
  if (!data) return;
  const keys = [];
  if (byId("colour").value === "group") {
    palette = [...data.groups.map((/** @type {string} */ _, /** @type {number} */ n) => css(`--c${n}`)), css("--c6")];
    classes = Uint8Array.from(data.group);
    keys.push(...data.groups, "others");
  } else {
    const most = Math.max(1, ...[data.popularity[order[order.length - 1]]]);
    palette = Array.from({ length: STEPS }, (_, n) => between(css("--ramp-low"), css("--ramp-high"), n / (STEPS - 1)));
    const step = Math.log1p(most) / STEPS;
    classes = Uint8Array.from(data.popularity, (/** @type {number} */ n) => Math.min(STEPS - 1, Math.floor(Math.log1p(n) / step)));
    for (let n = 0; n < STEPS; n++) {
      const from = n === 0 ? 0 : Math.ceil(Math.expm1(n * step) - 1e-9);
      const to = n === STEPS - 1 ? most : Math.ceil(Math.expm1((n + 1) * step) - 1e-9) - 1;
      keys.push(to < from ? null : from >= to ? count(from) : `${count(from)}–${count(to)}`);
    }
  }
  const numbers = palette.map(packed);
  colours = Uint32Array.from(classes, (n) => numbers[n]);
  byId("map-legend").replaceChildren(
    ...keys.map((name, n) => name === null ? null : legendKey(name, palette[n], "")).filter((one) => one !== null),
    legendKey("history", css("--text"), "ring"), legendKey("list", css("--c1"), "ring"));
  draw();
}

/** @param {string} name @param {string} colour @param {string} kind */
function legendKey(name, colour, kind) {
  const key = make("span", { class: `key ${kind}`, "aria-hidden": "true" });
  key.style.setProperty("--key", colour);
  return make("li", {}, key, name);
}

// ------------------------------------------------------------------------ drawing

/** Give the canvas as many pixels as it has on the screen; a view of everything stays one. */
function fit() {
  const element = canvas();
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [element.clientWidth * ratio, element.clientHeight * ratio].map(Math.round);
  if (element.width !== width || element.height !== height) {
    element.width = width;
    element.height = height;
  }
  if (!data) return;
  const all = view.scale === view.least;
  view.least = 0.92 * Math.min(element.clientWidth / data.span[0], element.clientHeight / data.span[1]);
  if (all) view.scale = view.least;
}

function showAll() {
  [view.x, view.y] = [data.span[0] / 2, data.span[1] / 2];
  view.scale = view.least;
  draw();
}

/** Draw before the next frame, once. */
function draw() {
  if (asked || !data) return;
  asked = requestAnimationFrame(() => {
    asked = 0;
    if (visible()) drawNow();
  });
}

/** Where an item is on the canvas, in CSS pixels. @param {number} n @returns {[number, number]} */
const at = (n) => [
  (data.x[n] - view.x) * view.scale + canvas().clientWidth / 2,
  canvas().clientHeight / 2 - (data.y[n] - view.y) * view.scale,
];

function drawNow() {
  const element = canvas();
  const { width, height } = element;
  const context = /** @type {CanvasRenderingContext2D} */ (element.getContext("2d"));
  if (!width || !height) return;
  const ratio = width / element.clientWidth;
  const scale = view.scale * ratio;
  const [left, top] = [width / 2 - view.x * scale, height / 2 + view.y * scale];
  const many = data.items.length;
  const zoom = Math.log2(view.scale / view.least + 1);
  const radius = ratio * Math.min(6, (many > 20000 ? 0.8 : many > FEW ? 1.6 : 2.6) + 0.6 * zoom);
  /** @type {number[]} */
  const inView = [];
  for (let i = 0; i < order.length; i++) {
    const n = order[i];
    const x = left + data.x[n] * scale;
    const y = top - data.y[n] * scale;
    if (x > -radius && y > -radius && x < width + radius && y < height + radius) inView.push(n);
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  if (inView.length > FEW) drawSquares(context, inView, left, top, scale, Math.max(1, Math.round(1.6 * radius)));
  else {
    context.clearRect(0, 0, width, height);
    context.globalAlpha = 0.85;
    for (const n of inView) {
      context.fillStyle = palette[classes[n]];
      context.beginPath();
      context.arc(left + data.x[n] * scale, top - data.y[n] * scale, radius, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawMarks(context, radius / ratio, inView);
}

/** Many points: pixels written by hand, which is a few times as fast as the canvas. */
function drawSquares(/** @type {CanvasRenderingContext2D} */ context, /** @type {number[]} */ points,
  /** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ scale, /** @type {number} */ side) {
  const { width, height } = context.canvas;
  if (!image || image.width !== width || image.height !== height) image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const half = side / 2;
  for (const n of points) {
    const x0 = Math.max(0, Math.round(left + data.x[n] * scale - half));
    const y0 = Math.max(0, Math.round(top - data.y[n] * scale - half));
    const x1 = Math.min(width, x0 + side);
    const y1 = Math.min(height, y0 + side);
    for (let y = y0; y < y1; y++) pixels.fill(colours[n], y * width + x0, y * width + x1);
  }
  context.putImageData(image, 0, 0);
}

/** Rings around the history and the list, names where few items are in view, and the middle while keys are used. */
function drawMarks(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ radius, /** @type {number[]} */ inView) {
  const rings = /** @type {[import("./state.js").Item[], string][]} */ ([[state.history, css("--text")], [state.list, css("--c1")]]);
  for (const [items, colour] of rings) {
    context.lineWidth = items === state.list ? 2.5 : 1.2;
    context.strokeStyle = colour;
    for (const one of items) {
      const n = places.get(one.item);
      if (n === undefined) continue;
      context.beginPath();
      context.arc(...at(n), radius + 2.5, 0, 7);
      context.stroke();
    }
  }
  if (selected >= 0) {
    context.strokeStyle = css("--c3");
    context.lineWidth = 3;
    context.beginPath();
    context.arc(...at(selected), radius + 6, 0, 7);
    context.stroke();
  }
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const named = inView.length <= NAMED ? inView : selected >= 0 && inView.includes(selected) ? [selected] : [];
  for (const n of named) {
    const [x, y] = at(n);
    const name = shortened(nameAt(n), 30);
    const width = context.measureText(name).width;
    // to the left of its point where it would leave the picture
    const start = x + radius + 8 + width > canvas().clientWidth ? x - radius - 8 - width : x + radius + 8;
    context.lineWidth = 3;
    context.strokeStyle = css("--back");
    context.strokeText(name, start, y);
    context.fillStyle = css("--text");
    context.fillText(name, start, y);
  }
  if (byKeys) {
    const [x, y] = [canvas().clientWidth / 2, canvas().clientHeight / 2];
    context.strokeStyle = css("--text");
    context.lineWidth = 1.5;
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 5 * dx, y + 5 * dy);
      context.lineTo(x + 13 * dx, y + 13 * dy);
    }
    context.stroke();
  }
}

const nameAt = (/** @type {number} */ n) => String(data.titles?.[n] || data.items[n]);
const shortened = (/** @type {string} */ text, /** @type {number} */ most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

// ------------------------------------------------------------------------ pointer and keys

/** The item at a place of the canvas in CSS pixels; -1 if there is none. @param {number} px @param {number} py @param {number} reach */
function itemAt(px, py, reach = REACH) {
  const x = (px - canvas().clientWidth / 2) / view.scale + view.x;
  const y = (canvas().clientHeight / 2 - py) / view.scale + view.y;
  return grid.nearest(x, y, reach / view.scale);
}

/** Zoom by a factor around a place of the canvas, which stays where it is. */
function zoom(/** @type {number} */ factor, px = canvas().clientWidth / 2, py = canvas().clientHeight / 2) {
  const [dx, dy] = [px - canvas().clientWidth / 2, canvas().clientHeight / 2 - py];
  const before = view.scale;
  view.scale = Math.max(view.least * 0.7, Math.min(view.least * 4000, view.scale * factor));
  view.x += dx / before - dx / view.scale;
  view.y += dy / before - dy / view.scale;
  moved();
}

function moved() {
  view.x = Math.max(0, Math.min(SIZE, view.x));
  view.y = Math.max(0, Math.min(SIZE, view.y));
  byId("map-tip").hidden = true;
  if (byKeys) sayMiddle();
  draw();
}

/** The item in the middle, for those who use keys. */
const middle = () => itemAt(canvas().clientWidth / 2, canvas().clientHeight / 2, Math.max(canvas().clientWidth, canvas().clientHeight) / 2);

function sayMiddle() {
  const n = middle();
  byId("map-status").textContent = n < 0 ? "Nothing is near the middle." : `Nearest to the middle: ${describe(n)}. Enter opens it.`;
}

const describe = (/** @type {number} */ n) => `${nameAt(n)}, ${some(data.popularity[n], "interaction")}`;

/** @param {number} n */
function take(n) {
  if (n < 0) return;
  selected = n;
  draw();
  openItem(data.items[n]);
}

function startPointer() {
  const element = canvas();
  /** Fingers or the mouse, where they were last. @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let travelled = 0;
  element.addEventListener("pointerdown", (event) => {
    byKeys = false;
    element.setPointerCapture(event.pointerId);
    down.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (down.size === 1) travelled = 0;
  });
  element.addEventListener("pointermove", (event) => {
    if (!data) return;
    const last = down.get(event.pointerId);
    if (!last) return showTip(event);
    const now = { x: event.offsetX, y: event.offsetY };
    travelled += Math.abs(now.x - last.x) + Math.abs(now.y - last.y);
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    down.set(event.pointerId, now);
    if (travelled < 4) return;
    if (other) {
      const spread = (/** @type {{x: number, y: number}} */ one) => Math.hypot(one.x - other.x, one.y - other.y);
      zoom(spread(now) / Math.max(1, spread(last)), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else {
      view.x -= (now.x - last.x) / view.scale;
      view.y += (now.y - last.y) / view.scale;
      moved();
    }
  });
  element.addEventListener("pointerup", (event) => {
    const clicked = down.size === 1 && travelled < 4;
    down.delete(event.pointerId);
    if (clicked && data) take(itemAt(event.offsetX, event.offsetY));
  });
  element.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  element.addEventListener("pointerleave", () => { byId("map-tip").hidden = true; });
  element.addEventListener("wheel", (event) => {
    if (!data) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
  }, { passive: false });
}

/** The name of the item under the pointer. @param {PointerEvent} event */
function showTip(event) {
  const n = itemAt(event.offsetX, event.offsetY);
  const tip = byId("map-tip");
  canvas().classList.toggle("over", n >= 0);
  tip.hidden = n < 0;
  if (n < 0) return;
  tip.textContent = describe(n);
  const [x, y] = at(n);
  const room = canvas().clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(4, Math.min(room, x + 12))}px`;
  tip.style.top = `${y > canvas().clientHeight - 50 ? y - 40 : y + 12}px`;
}

function startKeys() {
  canvas().addEventListener("keydown", (event) => {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = Math.min(canvas().clientWidth, canvas().clientHeight) / 10 / view.scale;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
    });
    const known = event.key in moves || ["+", "=", "-", "0", "Enter", " "].includes(event.key);
    if (!known) return;
    byKeys = true;
    event.preventDefault();
    if (event.key in moves) {
      view.x += moves[event.key][0] * step;
      view.y += moves[event.key][1] * step;
      moved();
    } else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") {
      showAll();
      sayMiddle();
    } else take(middle());
  });
  canvas().addEventListener("focus", () => {
    byKeys = canvas().matches(":focus-visible");
    if (data && byKeys) sayMiddle();
    draw();
  });
  canvas().addEventListener("blur", () => {
    byKeys = false;
    byId("map-status").textContent = "";
    draw();
  });
}

// ------------------------------------------------------------------------ start

/** Open the map with an item in its middle. @param {string | number} item */
export function showOnMap(item) {
  pending = item;
  open("map");
}

/** Where an item is on the screen, for tests. @param {string | number} item @returns {[number, number] | null} */
export function placeOnScreen(item) {
  const n = places.get(item);
  if (n === undefined) return null;
  const box = canvas().getBoundingClientRect();
  const [x, y] = at(n);
  return [x + box.left, y + box.top];
}

/** Make the panel work. @param {(panel: string) => void} openPanel */
export function startMap(openPanel) {
  open = openPanel;
  startPointer();
  startKeys();
  byId("zoom-in").addEventListener("click", () => data && zoom(1.6));
  byId("zoom-out").addEventListener("click", () => data && zoom(1 / 1.6));
  byId("zoom-all").addEventListener("click", () => data && showAll());
  byId("colour").addEventListener("change", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(() => {
    if (!visible()) return;
    fit();
    draw();
  }).observe(canvas());
  on("panel:map", refresh);
  on("run", refresh);
  on("runs", refresh);
  on("shown", draw);
  on("drawer", () => {
    if (byId("drawer").hidden) {
      selected = -1;
      draw();
    }
  });
}
