// The panel of metrics: by list length and by slice, of the run and of the one beside it.

import { address, json, newest } from "./api.js";
import { barChart, lineChart, table } from "./charts.js";
import { byId, count, make } from "./dom.js";
import { on, SAME, state } from "./state.js";

const CURVES = /** @type {Record<string, [string, string]>} */ ({
  precision: ["Precision@K", "Share of a list that is in what was held back."],
  recall: ["Recall@K", "Share of what was held back that is in the list."],
  ndcg: ["NDCG@K", "Hits count more at the top of the list."],
  mrr: ["MRR@K", "1 divided by the place of the first hit."],
  coverage: ["Coverage@K", "Share of all items that are in somebody's list."],
  popularity_rank: ["Popularity rank@K", "Mean rank by popularity of the items in lists, as a share of all items; 0 is the most popular."],
  gini: ["Gini coefficient@K", "0 if all items are in equally many lists, towards 1 if a few are in all."],
});

const load = newest(
  async (signal) => {
    const names = [state.run, ...(state.beside && state.beside !== SAME ? [state.beside] : [])];
    return Promise.all(names.map((model) => json(address("v1/quality", { model }), { signal })));
  },
  (answers) => {
    const parts = [make("h2", { text: "Stored with the run" }), stored(answers)];
    parts.push(make("h2", { text: "Measured here" }));
    const measured = answers.filter((one) => one.curves.length);
    if (!measured.length) {
      parts.push(make("p", { class: "note", text: "Nothing was held back from this run, so there is nothing to measure it on. `talos train` holds a test part back; `fit(…, known=test)` does in Python." }));
    } else {
      const sample = measured.map((one) => one.users < one.of_users ? `a sample of ${count(one.users)} of ${count(one.of_users)} users` : `${count(one.users)} users`);
      parts.push(make("p", { class: "note", text: `On the items that were held back from the run, of ${[...new Set(sample)].join(" and ")}; beside it, ranking by popularity.` }));
      parts.push(make("div", { class: "figures" }, ...figures(measured)));
    }
    byId("quality").replaceChildren(...parts);
    document.body.dataset.quality = answers.map((one) => one.model).join(" ");
  },
);

/** The stored metrics: a row for each metric, a column for each K. @param {any[]} answers */
function stored(answers) {
  const keys = answers.flatMap((answer) => Object.keys(answer.metrics).map((key) => key.split("@")));
  const ks = [...new Set(keys.filter((key) => key.length > 1).map((key) => Number(key[1])))].sort((a, b) => a - b);
  const names = [...new Set(keys.map((key) => key[0]))];
  if (!names.length) return make("p", { class: "note", text: "This run was saved without metrics." });
  const columns = ks.length ? ks : [0];
  const several = answers.length > 1;
  const header = ["metric", ...columns.flatMap((k) => answers.map((one) => `${k ? `@${k}` : "value"}${several ? ` ${one.model}` : ""}`))];
  const rows = names.map((name) => [name, ...columns.flatMap((k, n) => answers.map((answer) => {
    const found = answer.metrics[`${name}@${k}`] ?? (n === 0 ? answer.metrics[name] : undefined);
    return found === undefined ? "" : found.toFixed(4);
  }))]);
  return table(header, rows, "Stored metrics");
}

/** @param {any[]} answers */
function figures(answers) {
  const names = answers.length > 1 ? answers.map((one) => one.model) : ["model"];
  const found = [];
  answers[0].curves.forEach((/** @type {any} */ curve, /** @type {number} */ n) => {
    const [title, note] = CURVES[curve.metric] ?? [curve.metric, ""];
    const same = answers.every((one) => String(one.curves[n].ks) === String(curve.ks));
    const shown = same ? answers : [answers[0]];
    found.push(lineChart(title, "list length K", curve.ks, [
      ...shown.map((one, at) => ({ name: names[at], ys: one.curves[n].model })),
      { name: "popularity", ys: curve.popularity },
    ], note));
  });
  for (const [slice, title, xName, sizeName, note] of [
    ["by_activity", `Recall@${answers[0].k} by activity of the user`, "train interactions of the user", "users", ""],
    ["by_popularity", `Found in the top ${answers[0].k} by popularity of the item`, "popularity rank of the item, % of all items", "held-back interactions", ""],
  ]) {
    const groups = answers[0][slice];
    const same = answers.every((one) => String(one[slice].map((/** @type {any} */ row) => row.name)) === String(groups.map((/** @type {any} */ row) => row.name)));
    const shown = same ? answers : [answers[0]];
    if (groups.length) {
      found.push(barChart(title, xName, groups.map((/** @type {any} */ row) => row.name), [
        ...shown.map((one, at) => ({ name: names[at], ys: one[slice].map((/** @type {any} */ row) => row.model) })),
        { name: "popularity", ys: groups.map((/** @type {any} */ row) => row.popularity) },
      ], groups.map((/** @type {any} */ row) => count(row.size)), sizeName, note));
    }
  }
  return found;
}

/** Make the panel work. */
export function startQuality() {
  const refresh = () => {
    if (byId("quality").hidden) return;
    if (!byId("quality").firstChild) byId("quality").append(make("p", { class: "note", text: "Measuring …" }));
    load();
  };
  on("panel:quality", refresh);
  on("run", refresh);
}
