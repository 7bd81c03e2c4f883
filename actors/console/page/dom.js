// Elements made of text alone: nothing that a message holds is ever read as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function table(caption, columns, rows) {
  const head = columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title));
  const body = rows.map((row) =>
    h("tr", {}, columns.map((column, at) => {
      const value = column.value(row);
      const cell = value instanceof Node ? value : String(value ?? "");
      if (at === 0) return h("th", { scope: "row" }, cell);
      return h("td", { class: column.number ? "number" : null }, cell);
    })));
  const inner = h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, inner);
}

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(number) {
  if (number === null || number === undefined) return "";
  return Math.abs(number) < 100000 ? WHOLE.format(Math.round(number * 10) / 10) : SHORT.format(number);
}

export function size(bytes) {
  let left = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(left) < 1024) return unit === "B" ? `${Math.round(left)} B` : `${left.toFixed(1)} ${unit}`;
    left /= 1024;
  }
  return `${left.toFixed(1)} TiB`;
}

export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return seconds < 172800 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(seconds / 86400)} days`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

let quiet = 0;
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(quiet);
  quiet = setTimeout(() => { place.textContent = ""; }, 6000);
}

// Put `parts` where `place` has others, unless somebody is in the middle of them: a table that is drawn anew every two
// seconds must not take the focus from a button in it.
export function show(place, ...parts) {
  const active = document.activeElement;
  const kept = place.contains(active) && active !== place ? active.dataset.key : null;
  const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  place.replaceChildren(...parts.flat(Infinity).filter(Boolean));
  [...place.querySelectorAll(".scroll")].forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
  if (kept) place.querySelector(`[data-key="${CSS.escape(kept)}"]`)?.focus();
}
