// The page: which run, which panel.

import { address, json, showTrouble } from "./api.js";
import { byId, make } from "./dom.js";
import { startDrawer } from "./drawer.js";
import { lookAt, startLists } from "./lists.js";
import { showOnMap, startMap } from "./map.js";
import { startQuality } from "./quality.js";
import { changed, on, SAME, state } from "./state.js";
import { startTraffic } from "./traffic.js";

const tabs = /** @type {HTMLElement[]} */ ([...byId("tabs").children]);

/** Show a panel; panels fetch what they need when they are first seen. @param {string} name */
export function openPanel(name) {
  const chosen = tabs.find((tab) => tab.getAttribute("aria-controls") === name) ?? tabs[0];
  for (const tab of tabs) {
    const on = tab === chosen;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !on;
  }
  const panel = /** @type {string} */ (chosen.getAttribute("aria-controls"));
  document.body.dataset.panel = panel;
  if (location.hash.slice(1) !== panel) history.replaceState(null, "", `#${panel}`);
  changed(`panel:${panel}`);
}

function startTabs() {
  for (const tab of tabs) tab.addEventListener("click", () => openPanel(/** @type {string} */ (tab.getAttribute("aria-controls"))));
  byId("tabs").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const at = tabs.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const steps = /** @type {Record<string, number>} */ ({ ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 });
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = tabs[(steps[event.key] + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  window.addEventListener("hashchange", () => openPanel(location.hash.slice(1)));
}

/** The names that are offered. */
let offered = "";

/** Ask which runs there are, and offer them. */
async function loadRuns() {
  state.runs = (await json("v1/model")).models;
  const names = state.runs.map((run) => run.model);
  if (!names.includes(state.run)) state.run = state.runs.find((run) => run.default)?.model ?? names[0];
  if (state.beside !== SAME && !names.includes(state.beside)) state.beside = "";
  // a select that somebody has open stays as it is
  if (names.join("/") !== offered) {
    offered = names.join("/");
    byId("run").replaceChildren(...names.map((name) => make("option", { value: name, text: name })));
    byId("run").value = state.run;
    offerBeside();
  }
  changed("runs");
}

function offerBeside() {
  const others = state.runs.map((run) => run.model).filter((name) => name !== state.run);
  byId("beside").replaceChildren(
    make("option", { value: "", text: "nothing" }),
    ...others.map((name) => make("option", { value: name, text: name })),
    make("option", { value: SAME, text: "its scores alone" }),
  );
  if (state.beside === state.run) state.beside = "";
  byId("beside").value = state.beside;
}

async function start() {
  startTabs();
  byId("run").addEventListener("change", () => {
    state.run = byId("run").value;
    offerBeside();
    changed("run");
  });
  byId("beside").addEventListener("change", () => {
    state.beside = byId("beside").value;
    changed("run");
  });
  startLists();
  startMap(openPanel);
  startDrawer(showOnMap);
  startQuality();
  startTraffic(loadRuns);
  on("reload", () => loadRuns().catch(showTrouble));
  try {
    await loadRuns();
    const [first] = (await json(address("v1/users", { limit: 1, model: state.run }))).users;
    if (first) lookAt(first.user);
    else changed("person");
    openPanel(location.hash.slice(1));
  } catch (error) {
    showTrouble(error);
  }
}

start();
