// Requests to the service. The key is kept in this tab's session storage and sent in a header, never in an address.

import { byId } from "./dom.js";

const STORED = "talos-key";
/** @type {Promise<void> | null} */
let asking = null;

/** An answer that is not 2xx. */
export class ServiceError extends Error {
  /** @param {number} status @param {string} text @param {string | null} field */
  constructor(status, text, field) {
    super(field ? `${field}: ${text}` : text);
    this.status = status;
  }
}

const stored = () => {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return remembered;
  }
};
/** The key where the browser refuses to store anything. @type {string | null} */
let remembered = null;

/** @param {string} key */
function keep(key) {
  remembered = key;
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
    // it is remembered until the page is left
  }
}

/** Ask for a key; several requests that were refused wait for one dialog. @param {string | null} refused */
function askForKey(refused) {
  if (!asking) {
    const dialog = byId("key-dialog");
    byId("key-note").textContent = refused
      ? "That key was not accepted."
      : "It is kept for this tab only, and sent in a header.";
    byId("key").value = "";
    asking = new Promise((resolve) => {
      byId("key-form").onsubmit = (/** @type {Event} */ event) => {
        event.preventDefault();
        keep(byId("key").value.trim());
        asking = null;
        dialog.close();
        resolve();
      };
      // without a key there is nothing to show: whatever closes the dialog opens it again
      dialog.onkeydown = (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") event.preventDefault();
      };
      dialog.onclose = () => {
        if (asking) dialog.showModal();
      };
    });
    if (!dialog.open) dialog.showModal();
    byId("key").focus();
  }
  return asking;
}

/**
 * Send a request; with 401 a key is asked for and the request repeated.
 * @param {string} path
 * @param {{body?: any, signal?: AbortSignal}} [options] a body makes it a POST
 * @returns {Promise<Response>}
 */
async function send(path, { body, signal } = {}) {
  for (;;) {
    const key = stored();
    /** @type {Record<string, string>} */
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    const answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
    if (answer.status === 401) {
      // another request may have got a new key meanwhile
      if (stored() === key) await askForKey(key);
      continue;
    }
    if (!answer.ok) {
      const fault = await answer.json().catch(() => ({ error: answer.statusText, field: null }));
      throw new ServiceError(answer.status, fault.error, fault.field);
    }
    return answer;
  }
}

// A whole number of JavaScript is exact up to 2**53, an id of a run up to 2**63. Such ids stay text, which the service
// takes for the number as well; only an answer that has one is taken apart value by value.
const LONG = /[[,:]-?\d{16,}[,\]}]/;
/** @param {string} _ @param {any} value @param {{source: string}} [context] */
const exact = (_, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;

/** @param {string} path @param {{body?: any, signal?: AbortSignal}} [options] */
export async function json(path, options) {
  const answer = await (await send(path, options)).text();
  return LONG.test(answer) ? JSON.parse(answer, exact) : JSON.parse(answer);
}

/** @param {string} path */
export const text = async (path) => (await send(path)).text();

/** An address below the page's own, with its query; values that are null are left out. @param {string} path @param {Record<string, any>} query */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return search ? `${path}?${search}` : path;
}

/** An id as a part of a path. @param {string | number} id */
export const part = (id) => encodeURIComponent(String(id));

/** Show what went wrong, or take it away with null. @param {unknown} error */
export function showTrouble(error) {
  const place = byId("trouble");
  place.hidden = error === null;
  place.textContent = error === null ? "" : error instanceof ServiceError ? error.message : "The service does not answer.";
  if (error !== null && !(error instanceof ServiceError)) console.warn(error);
}

/**
 * A function of which only the newest call counts: earlier ones are aborted, and their answers dropped.
 * @template T
 * @param {(signal: AbortSignal, ...given: any[]) => Promise<T>} work
 * @param {(result: T) => void} done
 */
export function newest(work, done) {
  /** @type {AbortController | null} */
  let current = null;
  return async (/** @type {any[]} */ ...given) => {
    current?.abort();
    const mine = (current = new AbortController());
    try {
      const result = await work(mine.signal, ...given);
      if (current !== mine) return;
      showTrouble(null);
      done(result);
    } catch (error) {
      if (current === mine) showTrouble(error);
    }
  };
}
