// What is known about one item: popularity, share of lists, attributes and neighbours, beside whatever panel is open.

import { address, json, newest, part } from "./api.js";
import { bar, byId, count, make, nameOf, percent } from "./dom.js";
import { addToVisitor, changed, on, state } from "./state.js";

/** The item that is shown. @type {string | number | null} */
let shown = null;
/** What had the focus before. @type {HTMLElement | null} */
let before = null;
/** @type {(item: string | number) => void} */
let showOnMap = () => {};

const load = newest(
  async (signal, item) => {
    const at = `v1/items/${part(item)}`;
    const run = state.runs.find((one) => one.model === state.run);
    const [facts, near] = await Promise.all([
      json(address(at, { model: state.run }), { signal }),
      json(address(`${at}/similar`, { model: state.run, k: Math.min(12, run?.items ?? 12) }), { signal }),
    ]);
    return { facts, near: near.items, total: run?.items ?? 0 };
  },
  ({ facts, near, total }) => {
    byId("drawer-title").textContent = nameOf(facts);
    const share = make("dd", { text: "…" });
    const rows = [
      make("dt", { text: "id" }), make("dd", { class: "id", text: facts.item }),
      make("dt", { text: "popularity" }),
      make("dd", {}, `${count(facts.interactions)} interactions, place ${count(facts.popularity_rank)} of ${count(total)}`,
        bar(1 - (facts.popularity_rank - 1) / Math.max(1, total))),
      make("dt", { text: "share of lists" }), share,
    ];
    for (const [name, value] of Object.entries(facts.attributes)) {
      if (value === null) continue;
      rows.push(make("dt", { text: name }), make("dd", { text: Array.isArray(value) ? value.join(", ") : String(value) }));
    }
    const item = { item: facts.item, title: facts.title };
    byId("drawer-body").replaceChildren(
      make("div", { class: "row" },
        make("button", { type: "button", text: "Add to the visitor's history", onclick: () => addToVisitor(item) }),
        make("button", { type: "button", text: "Show on the map", onclick: () => showOnMap(facts.item) })),
      make("dl", { class: "facts" }, ...rows),
      make("h3", { id: "near-title", text: "Nearest items" }),
      make("p", { class: "note", text: "by the cosine of their vectors" }),
      make("ol", { class: "items near", "aria-labelledby": "near-title" }, ...near.map((/** @type {any} */ one) => make("li", {},
        make("button", { type: "button", class: "name", title: String(one.item), text: nameOf(one), onclick: () => openItem(one.item, false) }),
        bar(one.score), make("span", { class: "score", text: one.score.toFixed(2) })))),
    );
    // counted over many lists when it is first asked for, so it comes by itself
    loadShare(facts.item, share);
    document.body.dataset.item = String(facts.item);
  },
);

const loadShare = newest(
  async (signal, item, place) => ({ place, found: await json(address(`v1/items/${part(item)}/exposure`, { model: state.run }), { signal }) }),
  ({ place, found }) => place.replaceChildren(
    `${percent(found.share)}: in ${count(found.lists)} of ${count(found.of_lists)} lists of ${found.k}`, bar(found.share)),
);

/** Show an item. @param {string | number} item @param {boolean} [fresh] whether the focus comes from outside of the drawer */
export function openItem(item, fresh = true) {
  if (fresh || shown === null) before = /** @type {HTMLElement} */ (document.activeElement);
  shown = item;
  const drawer = byId("drawer");
  if (drawer.hidden) {
    byId("drawer-title").textContent = "…";
    byId("drawer-body").replaceChildren();
  }
  drawer.hidden = false;
  document.body.classList.add("with-drawer");
  drawer.scrollTop = 0;
  byId("drawer-title").focus({ preventScroll: true });
  changed("drawer");
  return load(item);
}

/** Hide the drawer; the focus goes back to where it was. */
export function closeItem() {
  if (shown === null) return;
  shown = null;
  byId("drawer").hidden = true;
  document.body.classList.remove("with-drawer");
  delete document.body.dataset.item;
  changed("drawer");
  if (before?.isConnected) before.focus();
}

/** Make the drawer work. @param {(item: string | number) => void} show what shows an item on the map */
export function startDrawer(show) {
  showOnMap = show;
  byId("drawer-close").addEventListener("click", closeItem);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeItem();
  });
  on("run", () => {
    if (shown !== null) load(shown);
  });
}
