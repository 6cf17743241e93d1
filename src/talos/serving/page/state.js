// What the panels share: the runs, who is looked at, and who wants to know when that changes.

/** @typedef {{item: string | number, title: string | null}} Item */

export const state = {
  /** The runs as `/v1/model` describes them. @type {any[]} */
  runs: [],
  /** The name of the run that is looked at. */
  run: "",
  /** The name of a second run beside it; "" for none, SAME for the same one without diversity and popularity. */
  beside: "",
  /** @type {"user" | "visitor"} */
  mode: "user",
  /** @type {string | number | null} */
  user: null,
  /** The history of the visitor. @type {Item[]} */
  visitor: [],
  /** The history and the list that are shown, for the map. @type {Item[]} */
  history: [],
  /** @type {Item[]} */
  list: [],
};

// no run is called so: it is not a name of a directory
export const SAME = "/same";

/** @type {Map<string, Set<() => void>>} */
const listeners = new Map();

/** Call `work` whenever `what` has changed: "run", "person", "shown" or "runs". @param {string} what @param {() => void} work */
export function on(what, work) {
  if (!listeners.has(what)) listeners.set(what, new Set());
  listeners.get(what)?.add(work);
}

/** Say that something has changed. @param {string} what */
export function changed(what) {
  for (const work of listeners.get(what) ?? []) work();
}

/** Add an item to the visitor's history and look at the visitor. @param {Item} item */
export function addToVisitor(item) {
  if (!state.visitor.some((one) => one.item === item.item)) state.visitor = [...state.visitor, item];
  state.mode = "visitor";
  changed("person");
}
