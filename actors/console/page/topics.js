// The tree of topics, a level at a time, with about how much is published to each.
import { get } from "./api.js";
import { count, h } from "./dom.js";
import { repeat } from "./repeat.js";

export function open(place, { failed }) {
  place.append(h("p", { class: "quiet" }, "Messages a second are counted in a sample of what is published now."));
  const root = h("ul", { class: "tree", "aria-label": "Topics" });
  const missing = h("p", { class: "bad", role: "status" });
  place.append(missing, root);
  const told = (names) => { missing.textContent = names.length ? `Topics may be missing: ${names.join(", ")} does not answer` : ""; };
  return level(root, "", failed, told);
}

// Fills `list` with the level under `prefix`, and keeps its rates true until what is returned is called.
function level(list, prefix, failed, missing) {
  const rows = new Map();
  let pages = 1;
  const draw = async () => {
    let after = "";
    for (let page = 0; page < pages; page += 1) {
      const told = await get("topics", { under: prefix, after });
      missing(told.missing);
      for (const row of told.rows) {
        if (!rows.has(row.name)) rows.set(row.name, entry(row, prefix, failed, missing));
        rows.get(row.name).rate.textContent = row.per_s ? `${count(row.per_s)}/s` : "";
      }
      after = told.next;
      if (after === null) break;
    }
    const items = [...rows.entries()].sort(([one], [other]) => (one < other ? -1 : 1)).map(([, row]) => row.item);
    if (items.length !== list.querySelectorAll(":scope > li[data-name]").length) {
      list.replaceChildren(...items);
      if (items.length === 0) list.append(h("li", { class: "quiet" }, "No topics yet."));
    }
    list.querySelector(":scope > li.more")?.remove();
    if (after !== null) {
      list.append(h("li", { class: "more" }, h("button", { class: "plain", type: "button", onclick: () => { pages += 1; draw().catch(failed); } }, "more")));
    }
  };
  const end = repeat(draw, 3000, failed);
  return () => {
    end();
    rows.forEach((row) => row.close());
  };
}

function entry(row, prefix, failed, missing) {
  const rate = h("span", { class: "rate" });
  const shown = row.name.slice(prefix.length) || "(empty level)";
  let close = () => {};
  if (!row.has_topics_below) {
    const link = h("a", { href: `#messages?filter=${encodeURIComponent(row.name)}&past=1` }, shown);
    return { item: h("li", { "data-name": row.name }, h("div", {}, link, rate)), rate, close: () => close() };
  }
  const below = h("ul", { "aria-label": `Below ${row.name}` });
  const button = h("button", { class: "plain", type: "button", "aria-expanded": "false" }, `▸ ${shown}`);
  const all = h("a", { href: `#messages?filter=${encodeURIComponent(`${row.name}#`)}&past=1`, "aria-label": `Messages below ${row.name}` }, "messages");
  const item = h("li", { "data-name": row.name }, h("div", {}, button, all, rate));
  button.addEventListener("click", () => {
    const opens = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(opens));
    button.textContent = `${opens ? "▾" : "▸"} ${shown}`;
    close();
    close = () => {};
    if (opens) {
      item.append(below);
      close = level(below, row.name, failed, missing);
    } else {
      below.remove();
    }
  });
  return { item, rate, close: () => close() };
}
