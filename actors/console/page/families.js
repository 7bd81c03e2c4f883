// What was learned of topic families, in words, and what it spares.
import { get } from "./api.js";
import { count, h, show, size, span, table } from "./dom.js";
import { repeat } from "./repeat.js";

export function open(place, { failed, parameters }) {
  const list = h("section", {});
  const one = h("section", { "aria-live": "polite" });
  place.append(list, one);
  const look = async (name) => {
    show(one, h("p", { class: "quiet" }, "..."));
    try {
      show(one, told(await get("family", { name })));
      one.scrollIntoView({ block: "start" });
    } catch (error) {
      show(one, h("p", {}, error.message));
      if (error.status === 401) failed(error);
    }
  };
  if (parameters.get("name")) look(parameters.get("name"));
  return repeat(async () => {
    const page = await get("families", { limit: 200 });
    show(list, page.rows.length ? families(page.rows, look)
      : h("p", {}, "No family is known yet: dictionaries are learned once some hundred messages were published."));
  }, 5000, failed);
}

function families(rows, look) {
  const saved = (row) => row.raw_bytes - row.sent_bytes - row.dictionary_bytes;
  const sorted = [...rows].sort((one, other) => other.raw_bytes - one.raw_bytes);
  return table("Families", [
    { title: "family", value: (row) => h("button", { class: "plain", type: "button", "data-key": row.name, onclick: () => look(row.name) }, row.name) },
    { title: "codec", value: (row) => row.codec ?? "" },
    { title: "messages seen", number: true, value: (row) => count(row.messages) },
    { title: "raw", number: true, value: (row) => size(row.raw_bytes) },
    { title: "sent", number: true, value: (row) => size(row.sent_bytes + row.dictionary_bytes) },
    { title: "spared", number: true, value: (row) => `${((100 * saved(row)) / Math.max(1, row.raw_bytes)).toFixed(1)}%` },
  ], sorted);
}

function told(family) {
  const parts = [h("h2", {}, family.name),
    h("p", {}, `Learned ${span(family.age_s)} ago from ${count(family.samples)} messages; ${size(family.packed_bytes)} to send once, codec ${family.codec}.`)];
  if (family.example) {
    const { before, before_bytes: from, after_bytes: to, after_base64: after } = family.example;
    parts.push(h("div", { class: "two" },
      h("div", {}, h("h3", {}, `A message: ${count(from)} bytes`), h("p", { class: "topic" }, before.topic),
        h("pre", { tabindex: "0" }, before.payload ?? `(Base64) ${before.payload_base64}`)),
      h("div", {}, h("h3", {}, `The same on a link: ${count(to)} bytes`),
        h("p", {}, from ? `${(100 * (1 - to / from)).toFixed(1)}% spared` : ""), h("pre", { tabindex: "0" }, hex(after)))));
  }
  parts.push(h("h3", {}, "What was learned, in words"), h("pre", { tabindex: "0" }, family.words.join("\n")));
  return parts;
}

function hex(base64) {
  return [...atob(base64)].map((letter) => letter.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
}
