// The panel of traffic: requests, their times, versions and feedback, from `/metrics` and `/v1/model` every two seconds.

import { showTrouble, text } from "./api.js";
import { sparkline, table } from "./charts.js";
import { byId, count, make } from "./dom.js";
import { on, state } from "./state.js";

const EVERY = 2000;
const KEPT = 90;

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

/**
 * The samples of a text in Prometheus' format.
 * @param {string} lines @returns {Sample[]}
 */
export function samples(lines) {
  const found = [];
  for (const line of lines.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((one) => [one[1], one[2]]));
    found.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return found;
}

/** Requests per second between two looks. @type {number[]} */
let rates = [];
/** @type {{time: number, total: number} | null} */
let last = null;
let timer = 0;
/** @type {() => Promise<void>} */
let loadRuns = async () => {};

/** The time within which a share of the requests was answered, in ms, from the buckets of a histogram. @param {Sample[]} buckets @param {number} share */
function quantile(buckets, share) {
  const sorted = buckets.map((one) => [Number(one.labels.le.replace("+Inf", "Infinity")), one.value]).sort((a, b) => a[0] - b[0]);
  const total = sorted.length ? sorted[sorted.length - 1][1] : 0;
  if (!total) return null;
  const found = sorted.find(([, upTo]) => upTo >= share * total);
  return found ? 1000 * found[0] : null;
}

const milliseconds = (/** @type {number | null} */ value) => value === null ? "–" : value === Infinity ? "> 10 s" : `≤ ${value} ms`;

async function look() {
  clearTimeout(timer);
  if (byId("traffic").hidden || document.hidden) return;
  try {
    const [lines] = await Promise.all([text("metrics"), loadRuns()]);
    show(samples(lines));
    showTrouble(null);
  } catch (error) {
    showTrouble(error);
  }
  clearTimeout(timer);
  timer = window.setTimeout(look, EVERY);
}

/** @param {Sample[]} found */
function show(found) {
  const of = (/** @type {string} */ name) => found.filter((one) => one.name === name);
  const value = (/** @type {string} */ name) => of(name)[0]?.value ?? 0;
  // what this page asks for every two seconds is not traffic
  const requests = of("talos_requests_total").filter((one) => !["health", "model", "page"].includes(one.labels.route));
  const sum = (/** @type {Sample[]} */ some) => some.reduce((all, one) => all + one.value, 0);
  const total = sum(requests);
  const now = performance.now();
  if (last) rates = [...rates, Math.max(0, (total - last.total) / ((now - last.time) / 1000))].slice(-KEPT);
  last = { time: now, total };
  const failed = sum(requests.filter((one) => one.labels.status.startsWith("5")));
  const routes = [...new Set(requests.map((one) => one.labels.route))];
  const buckets = of("talos_request_seconds_bucket");
  const rate = rates.length ? rates[rates.length - 1] : 0;

  const tiles = [
    ["requests per second", rate.toFixed(1), `${count(total)} since the start`],
    ["in work now", count(value("talos_in_flight")), "at this moment"],
    ["refused or failed", count(failed), "with 5xx"],
    ["lists", count(value("talos_lists_total")), `${count(value("talos_folded_users_total"))} from folded histories`],
    ["mean batch", (value("talos_batched_requests_total") / Math.max(1, value("talos_batches_total"))).toFixed(2), "requests ranked together"],
    ["events of feedback", count(value("talos_feedback_events_total")), `${count(value("talos_feedback_repeated_total"))} repeated, ${count(value("talos_unknown_items_total"))} of unknown items`],
    ["reloads", count(value("talos_reloads_total")), `${count(value("talos_failed_reloads_total"))} failed`],
  ];
  const byRoute = routes.map((route) => {
    const mine = requests.filter((one) => one.labels.route === route);
    const own = buckets.filter((one) => one.labels.route === route);
    const seconds = of("talos_request_seconds_sum").find((one) => one.labels.route === route)?.value ?? 0;
    const bad = (/** @type {string} */ kind) => count(sum(mine.filter((one) => one.labels.status.startsWith(kind))));
    return [route, count(sum(mine)), bad("4"), bad("5"), `${((1000 * seconds) / Math.max(1, sum(mine))).toFixed(1)} ms`,
      milliseconds(quantile(own, 0.5)), milliseconds(quantile(own, 0.99))];
  });
  const runs = state.runs.map((run) => [
    run.model, run.version, new Date(1000 * run.loaded_at).toLocaleString(), count(run.users), count(run.items),
    `${run.loss} / ${run.backbone}`, String(run.dim), count(run.events), count(run.users_with_events), count(run.unknown_items),
  ]);
  const faults = state.runs.filter((run) => run.reload_error).map((run) => make("p", { class: "trouble", text: `${run.model} could not be reloaded: ${run.reload_error}` }));
  // tables that somebody scrolls keep their place, because their elements stay
  const panel = byId("traffic");
  const focus = document.activeElement;
  const scrolled = [...panel.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  const focused = [...panel.querySelectorAll(".wide")].indexOf(/** @type {any} */ (focus));
  panel.replaceChildren(
    make("h2", { text: "Requests" }),
    make("dl", { class: "tiles" }, ...tiles.map(([name, number, more]) => make("div", {}, make("dt", { text: name }),
      make("dd", {}, make("strong", { text: number }), make("span", { text: more }))))),
    rates.length > 1 ? sparkline(rates, `Requests per second in the last ${rates.length * EVERY / 1000} seconds; now ${rate.toFixed(1)}`) : make("p", { class: "note", text: "Looking …" }),
    byRoute.length ? table(["route", "requests", "4xx", "5xx", "mean", "half within", "99 % within"], byRoute, "Requests by route") : make("p", { class: "note", text: "No requests yet." }),
    make("h2", { text: "Versions and feedback" }),
    ...faults,
    table(["run", "version", "loaded", "users", "items", "loss / backbone", "dim", "events since training", "users with events", "events of unknown items"], runs, "Runs"),
    make("p", { class: "note", text: "Looked at every two seconds; these looks and the files of the page are not counted above." }),
  );
  [...panel.querySelectorAll(".wide")].forEach((one, n) => {
    one.scrollLeft = scrolled[n] ?? 0;
    if (n === focused) /** @type {HTMLElement} */ (one).focus({ preventScroll: true });
  });
  document.body.dataset.traffic = String(Number(document.body.dataset.traffic ?? 0) + 1);
}

/** Make the panel work. @param {() => Promise<void>} askForRuns */
export function startTraffic(askForRuns) {
  loadRuns = askForRuns;
  on("panel:traffic", look);
  document.addEventListener("visibilitychange", look);
}
