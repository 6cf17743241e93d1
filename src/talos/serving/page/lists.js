// The panel of lists: somebody's history beside what one run, or two, recommend.

import { address, json, newest, part, ServiceError } from "./api.js";
import { bar, byId, count, debounced, make, nameOf, percent, some } from "./dom.js";
import { openItem } from "./drawer.js";
import { finder } from "./finder.js";
import { addToVisitor, changed, on, SAME, state } from "./state.js";

const SOURCES = {
  model: "made by the model from what it has learnt",
  folded: "made by the model from this history, which it was not trained on",
  popular: "nothing is known, so these are the most popular items",
};

const value = (/** @type {string} */ id) => Number(byId(id).value);

/** The body of a request for a list. @param {string} run @param {boolean} plain without diversity and popularity */
function wanted(run, plain) {
  const limit = Math.max(1, Math.min(100, Math.round(value("length")) || 20));
  return {
    ...(state.mode === "user" ? { users: [state.user] } : { history: state.visitor.map((one) => one.item) }),
    model: run,
    k: limit,
    diversity: plain ? 0 : value("diversity"),
    popularity: plain ? 0 : value("popularity"),
    filter_seen: !byId("with-seen").checked,
    explain: byId("why").checked,
  };
}

/** The history of a user; null for one who is not known. @param {AbortSignal} signal */
async function historyOf(signal) {
  if (state.mode === "visitor" || state.user === null) return null;
  try {
    return await json(address(`v1/users/${part(state.user)}`, { model: state.run }), { signal });
  } catch (error) {
    if (error instanceof ServiceError && error.status === 404) return null;
    throw error;
  }
}

const refresh = newest(
  async (signal) => {
    const second = state.beside === SAME ? state.run : state.beside;
    const requests = [wanted(state.run, false), ...(second ? [wanted(second, state.beside === SAME)] : [])];
    if (state.mode === "user" && state.user === null) return { person: null, answers: [] };
    const [person, ...answers] = await Promise.all([
      historyOf(signal),
      ...requests.map((body) => json("v1/recommend", { body, signal })),
    ]);
    return { person, answers };
  },
  ({ person, answers }) => {
    showHistory(person);
    showLists(answers);
    // a run was replaced since the page asked for the runs
    const versions = new Map(state.runs.map((run) => [run.model, run.version]));
    if (answers.some((one) => versions.get(one.model) !== one.version)) changed("reload");
    document.body.dataset.shown = String(Number(document.body.dataset.shown ?? 0) + 1);
  },
);

// ------------------------------------------------------------------------ history

/** @param {any} person */
function showHistory(person) {
  const visitor = state.mode === "visitor";
  byId("mode-user").checked = !visitor;
  byId("mode-visitor").checked = visitor;
  byId("find-user").hidden = visitor;
  byId("find-item").hidden = !visitor;
  state.history = visitor ? state.visitor : (person?.history ?? []);
  byId("take-over").hidden = visitor || !state.history.length;
  byId("clear-visitor").hidden = !visitor || !state.history.length;
  byId("history-title").textContent = visitor ? "History of the visitor" : state.user === null ? "History" : `History of ${state.user}`;
  let note = "";
  if (visitor) note = state.visitor.length ? `${some(state.visitor.length, "item")}; × takes one away` : "Click + beside any item, or find one above.";
  else if (state.user === null) note = "Nobody is chosen.";
  else if (!person) note = "The run does not know this user.";
  else {
    note = some(person.interactions, "item");
    if (person.new_events) note += `, ${count(person.new_events)} of them new since training`;
    if (person.history.length < person.interactions) note += `; the first ${count(person.history.length)} are shown`;
  }
  byId("history-note").textContent = note;
  byId("history").replaceChildren(...state.history.map((item) => make("li", {},
    itemButton(item),
    visitor
      ? make("button", {
        type: "button", class: "small", text: "×", "aria-label": `Take away ${nameOf(item)}`,
        onclick: () => {
          state.visitor = state.visitor.filter((one) => one !== item);
          changed("person");
          (byId("history").querySelector("button.small") ?? byId("item")).focus();
        },
      })
      : addButton(item))));
}

/** @param {import("./state.js").Item} item */
function itemButton(item) {
  return make("button", { type: "button", class: "name", title: String(item.item), text: nameOf(item), onclick: () => openItem(item.item) });
}

/** @param {import("./state.js").Item} item */
export function addButton(item) {
  return make("button", {
    type: "button", class: "small", text: "+", title: "Add to the visitor's history",
    "aria-label": `Add ${nameOf(item)} to the visitor's history`,
    onclick: () => addToVisitor({ item: item.item, title: item.title }),
  });
}

// ------------------------------------------------------------------------ lists

/** @param {any[]} answers */
function showLists(answers) {
  const lists = answers.map((answer) => answer.results[0].items);
  state.list = lists[0] ?? [];
  const ranks = lists.map((items) => new Map(items.map((/** @type {any} */ one) => [one.item, one.rank])));
  ["first", "second"].forEach((id, place) => {
    const section = byId(id);
    const answer = answers[place];
    section.hidden = !answer && id === "second";
    if (!answer) {
      section.querySelector("ol").replaceChildren();
      section.querySelector(".note").textContent = id === "first" ? "Find a user, or build a visitor by clicking items." : "";
      section.querySelector("h2").textContent = "List";
      return;
    }
    const plain = id === "second" && state.beside === SAME;
    section.querySelector("h2").textContent = plain ? `${answer.model}, scores alone` : answer.model;
    const source = SOURCES[/** @type {keyof SOURCES} */ (answer.results[0].source)];
    section.querySelector(".note").textContent = `version ${answer.version}, ${answer.took_ms.toFixed(1)} ms; ${source}`;
    const other = answers.length > 1 ? ranks[1 - place] : null;
    const items = answer.results[0].items;
    // bars are as long as the strongest reason of the list, so that those of a long history can be compared
    const most = Math.max(...items.flatMap((/** @type {any} */ item) => item.reasons ?? []).map((/** @type {any} */ reason) => reason.share), 1e-9);
    section.querySelector("ol").replaceChildren(...items.map((/** @type {any} */ item) => row(item, other, most)));
    if (!items.length) section.querySelector("ol").append(make("li", { class: "none", text: "The list is empty." }));
  });
  byId("difference").textContent = answers.length > 1 ? difference(lists, ranks) : "";
  changed("shown");
}

/** @param {any[][]} lists @param {Map<any, number>[]} ranks */
function difference(lists, ranks) {
  const both = lists[0].filter((one) => ranks[1].has(one.item));
  const same = both.filter((one) => ranks[1].get(one.item) === one.rank).length;
  return `${both.length} of ${lists[0].length} items are in both lists, ${same} at the same place.`;
}

/** One place of a list, marked where the other list differs. @param {any} item @param {Map<any, number> | null} other @param {number} most */
function row(item, other, most) {
  let mark = null;
  if (other) {
    const there = other.get(item.item);
    if (there === undefined) mark = make("span", { class: "mark only", text: "only here" });
    else if (there !== item.rank) {
      const up = item.rank < there;
      const words = `${up ? "higher" : "lower"} by ${Math.abs(item.rank - there)}: place ${there} in the other list`;
      mark = make("span", { class: `mark ${up ? "up" : "down"}`, title: words, "aria-label": words, role: "img", text: `${up ? "▲" : "▼"} ${Math.abs(item.rank - there)}` });
    }
  }
  const why = item.reasons?.length
    ? make("ul", { class: "why", "aria-label": "Why: shares of what speaks for it", title: "Items of the history that speak for it, and their shares in all that does" }, ...item.reasons.map((/** @type {any} */ reason) => make("li", {},
      bar(reason.share / most), make("span", { class: "share", text: percent(reason.share) }),
      make("span", { class: "because", title: nameOf(reason), text: nameOf(reason) }))))
    : null;
  return make("li", { class: mark?.classList.contains("only") ? "different" : null },
    make("span", { class: "rank", text: item.rank }),
    itemButton(item), mark,
    make("span", { class: "score", title: "score", text: item.score.toFixed(3) }),
    addButton(item), why);
}

// ------------------------------------------------------------------------ start

/** Make the panel work. */
export function startLists() {
  finder(byId("user"), {
    find: async (text, signal) => (await json(address("v1/users", { q: text, limit: 12, model: state.run }), { signal })).users,
    show: (one) => ({ name: String(one.user), more: some(one.interactions, "item") }),
    take: (one) => lookAt(one.user),
    takeText: lookAt,
  });
  finder(byId("item"), {
    find: async (text, signal) => (await json(address("v1/items", { q: text, limit: 12, model: state.run }), { signal })).items,
    show: (one) => ({ name: nameOf(one), more: one.title ? String(one.item) : "" }),
    take: addToVisitor,
  });
  const soon = debounced(refresh, 60);
  for (const id of ["diversity", "popularity"]) {
    byId(id).addEventListener("input", () => {
      byId(`${id}-value`).textContent = value(id).toFixed(2);
      soon();
    });
  }
  byId("length").addEventListener("input", debounced(refresh, 200));
  for (const id of ["why", "with-seen"]) byId(id).addEventListener("change", refresh);
  for (const mode of /** @type {const} */ (["user", "visitor"])) {
    byId(`mode-${mode}`).addEventListener("change", () => {
      state.mode = mode;
      changed("person");
    });
  }
  byId("take-over").addEventListener("click", () => {
    state.visitor = [...state.history];
    state.mode = "visitor";
    changed("person");
    byId("item").focus();
  });
  byId("clear-visitor").addEventListener("click", () => {
    state.visitor = [];
    changed("person");
    byId("item").focus();
  });
  on("person", refresh);
  on("run", refresh);
}

/** Look at a user. @param {string | number} user */
export function lookAt(user) {
  state.user = user;
  state.mode = "user";
  changed("person");
}
