// Elements from text. Nothing here or elsewhere on the page turns text into HTML: ids and titles may contain anything.

/** The element with this id. @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/**
 * A new element.
 * @param {string} tag
 * @param {Record<string, any>} [options] `text`; `on…` for events; everything else is an attribute, absent if null or false.
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A new SVG element. @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string)} children */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** What an item is called: its title, else its id. @param {{item: any, title?: string | null}} item */
export const nameOf = (item) => String(item.title || item.item);

const whole = new Intl.NumberFormat("en");
/** A whole number with separators. @param {number} value */
export const count = (value) => whole.format(value);

/** A share of 1 as per cent. @param {number} share */
export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;

/** `1 item`, `2 items`. @param {number} number @param {string} noun */
export const some = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/**
 * Call `work` when nothing has asked for it for some milliseconds.
 * @param {() => void} work @param {number} milliseconds
 */
export function debounced(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(work, milliseconds);
  };
}

/** A bar of a share from 0 to 1; the number must stand beside it. @param {number} share @param {string} [kind] */
export function bar(share, kind = "") {
  const inner = make("span", { class: `fill ${kind}` });
  inner.style.inlineSize = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}
