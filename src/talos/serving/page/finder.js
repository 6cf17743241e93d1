// A text field that finds while one types: arrow keys choose, Enter takes, Escape closes (the combobox pattern of ARIA).

import { debounced, make } from "./dom.js";
import { newest } from "./api.js";

/**
 * @template T
 * @param {HTMLInputElement} input
 * @param {object} how
 * @param {(text: string, signal: AbortSignal) => Promise<T[]>} how.find
 * @param {(one: T) => {name: string, more: string}} how.show
 * @param {(one: T) => void} how.take
 * @param {(text: string) => void} [how.takeText] what Enter does if nothing is chosen
 */
export function finder(input, { find, show, take, takeText }) {
  // Chromium lets Tab stop at whatever scrolls, but the list closes as soon as the field loses the focus
  const list = make("ul", { id: `${input.id}-found`, role: "listbox", hidden: true, tabindex: -1, "aria-label": "Found" });
  list.addEventListener("mousedown", (/** @type {Event} */ event) => event.preventDefault());  // the field keeps the focus
  input.after(list);
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list",
  })) input.setAttribute(name, value);
  /** @type {T[]} */
  let found = [];
  let chosen = -1;
  /** Whether something was taken since the last key: an answer that comes then opens nothing. */
  let quiet = false;

  const close = () => {
    list.hidden = true;
    chosen = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };

  /** @param {number} place */
  const choose = (place) => {
    chosen = place;
    [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === place)));
    if (place >= 0) {
      input.setAttribute("aria-activedescendant", list.children[place].id);
      list.children[place].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };

  /** @param {number} place */
  const accept = (place) => {
    const one = found[place];
    input.value = "";
    quiet = true;
    close();
    take(one);
  };

  const search = newest(
    async (signal) => find(input.value.trim(), signal),
    (/** @type {T[]} */ result) => {
      if (quiet || document.activeElement !== input) return;
      found = result;
      list.replaceChildren(...found.map((one, place) => {
        const { name, more } = show(one);
        return make("li", {
          id: `${list.id}-${place}`, role: "option", "aria-selected": "false",
          // before the field loses the focus
          onpointerdown: (/** @type {Event} */ event) => { event.preventDefault(); accept(place); },
        }, make("span", { class: "name", text: name }), make("span", { class: "more", text: more }));
      }));
      if (!found.length) list.append(make("li", { class: "none", text: "Nothing found" }));
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      choose(-1);
    },
  );

  const soon = debounced(() => { if (!quiet) search(); }, 120);
  input.addEventListener("input", () => {
    quiet = false;
    soon();
  });
  input.addEventListener("focus", () => {
    quiet = false;
    search();
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      quiet = false;
      if (list.hidden) search();
      else if (found.length) choose((chosen + (event.key === "ArrowDown" ? 1 : chosen < 0 ? 0 : -1) + found.length) % found.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (chosen >= 0) accept(chosen);
      else if (takeText && input.value.trim()) {
        const wanted = input.value.trim();
        input.value = "";
        quiet = true;
        close();
        takeText(wanted);
      }
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
    }
  });
}
