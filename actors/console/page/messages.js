// The past of topics, what comes now, a chart or a map of it, and publishing by hand.
import { get, path, post } from "./api.js";
import { lines, map } from "./charts.js";
import { clock, count, h, say, show } from "./dom.js";
import { coordinates, numbers } from "./payloads.js";

const SHOWN = 100;
const KEPT = 500;
const DRAW_MS = 250;

export function open(place, { parameters, failed }) {
  const view = new Messages(place, failed);
  if (parameters.get("topic")) view.topic.value = parameters.get("topic");
  if (parameters.get("payload")) view.payload.value = parameters.get("payload");
  if (parameters.get("filter")) view.filter.value = parameters.get("filter");
  else if (parameters.get("topic")) view.filter.value = "#";
  if (parameters.get("past")) view.past().then(() => view.follow());
  else view.follow();
  return () => view.close();
}

class Messages {
  constructor(place, failed) {
    this.failed = failed;
    this.messages = [];
    this.leftOut = 0;
    this.source = null;
    this.closed = false;
    this.drawing = 0;
    this.land = [];
    const text = (attributes) => h("input", { spellcheck: "false", autocapitalize: "none", autocomplete: "off", ...attributes });
    this.filter = text({ name: "filter", value: "#", required: true });
    this.where = text({ name: "where", placeholder: "delay > 30" });
    this.since = h("select", { name: "since" }, ["10m", "1h", "1d", "7d", "beginning"].map((each) => h("option", { value: each }, each)));
    this.since.value = "1h";
    this.live = h("button", { type: "button", onclick: () => (this.source ? this.stop() : this.follow()) }, "Follow");
    this.topic = text({ name: "topic", value: "hello/world", required: true });
    this.payload = h("textarea", { name: "payload", rows: "2", spellcheck: "false" });
    this.payload.value = '{"temperature": 21.5}';
    this.retain = h("input", { type: "checkbox", name: "retain" });
    this.field = h("select", { name: "field", onchange: () => this.draw() });
    this.state = h("p", { class: "quiet", role: "status" });
    this.picture = h("section", { "aria-label": "Chart and map" });
    this.chartOf = h("label", { class: "field", hidden: true }, "Chart of", this.field);
    this.list = h("ol", { class: "messages", "aria-label": "Messages, the newest first" });
    place.append(
      h("div", { class: "two" },
        h("section", {}, h("h2", {}, "Look"),
          h("form", { onsubmit: (event) => { event.preventDefault(); this.past().then(() => this.source && this.follow()); } },
            h("label", { class: "wide" }, "Topic filter: + one level, # all below", this.filter),
            h("label", { class: "wide" }, "Only where (a condition)", this.where),
            h("label", {}, "Past", this.since),
            h("button", { class: "main", type: "submit" }, "Show the past"), this.live)),
        h("section", {}, h("h2", {}, "Publish"),
          h("form", { onsubmit: (event) => { event.preventDefault(); this.publish(); } },
            h("label", { class: "wide" }, "Topic", this.topic),
            h("label", { class: "wide" }, "Payload", this.payload),
            h("label", { class: "check" }, this.retain, "Retain"),
            h("button", { class: "main", type: "submit" }, "Publish")))),
      this.state, this.chartOf, this.picture, this.list);
  }

  async past() {
    const asked = { filter: this.filter.value, where: this.where.value, since: this.since.value, limit: KEPT };
    if (/[+#]/.test(asked.filter)) asked.last = 10;
    try {
      const page = await get("history", asked);
      this.messages = [];
      this.take(page.rows.sort((one, other) => one.time - other.time));
      const more = page.next !== null || !page.complete ? "; there is more: narrow it by a filter or a condition" : "";
      const which = asked.last ? ", the last ten of each topic" : "";
      this.tell(`${count(page.rows.length)} messages of the past${which}${more}`);
    } catch (error) {
      this.failed(error);
    }
  }

  follow() {
    this.stop();
    if (this.closed) return;
    this.source = new EventSource(path("stream", { filter: this.filter.value, where: this.where.value }));
    this.live.textContent = "Stop";
    this.leftOut = 0;
    this.tell(`following ${this.filter.value}`);
    this.source.onmessage = (event) => {
      const told = JSON.parse(event.data);
      this.leftOut += told.left_out;
      this.take(told.messages);
    };
    this.source.onerror = () => {
      if (this.source?.readyState !== EventSource.CLOSED) return;
      this.stop();
      // An EventSource does not say why: what is wrong with the question a history says.
      get("history", { filter: this.filter.value, where: this.where.value, since: "1s", limit: 1 })
        .then(() => this.tell("the stream has ended"), this.failed);
    };
  }

  stop() {
    this.source?.close();
    this.source = null;
    this.live.textContent = "Follow";
  }

  close() {
    this.closed = true;
    this.stop();
  }

  take(messages) {
    const known = new Set(this.messages.slice(-200).map((each) => each.position));
    this.messages.push(...messages.filter((each) => !known.has(each.position)));
    this.messages.splice(0, Math.max(0, this.messages.length - KEPT));
    if (!this.drawing) {
      this.drawing = setTimeout(() => { this.drawing = 0; this.draw(); }, DRAW_MS);
    }
  }

  tell(text) {
    this.state.textContent = text;
  }

  draw() {
    const newest = this.messages.slice(-SHOWN).reverse();
    this.list.replaceChildren(...newest.map(item));
    const fields = numbers(this.messages);
    const names = [...fields.keys()];
    if (names.join() !== [...this.field.options].map((each) => each.value).join()) {
      const chosen = this.field.value;
      this.field.replaceChildren(...names.map((each) => h("option", { value: each }, each)));
      if (names.includes(chosen)) this.field.value = chosen;
    }
    this.chartOf.hidden = names.length === 0;
    const places = coordinates(this.messages);
    const parts = [];
    if (names.length) parts.push(lines(`${this.field.value} of the messages shown`, [{ name: this.field.value, style: "a", points: fields.get(this.field.value) ?? [] }]));
    if (places.size) {
      if (!this.land.length) import("./land.js").then((module) => { this.land = module.land; this.draw(); });
      parts.push(map("Where messages are from", places, this.land));
    }
    show(this.picture, h("div", { class: parts.length > 1 ? "two" : "" }, parts));
    if (this.leftOut) this.tell(`following ${this.filter.value}; left out, since too many come: ${count(this.leftOut)}`);
  }

  async publish() {
    try {
      const told = await post("publish", { topic: this.topic.value, payload: this.payload.value, retain: this.retain.checked });
      say(`Stored, at ${told.position}`);
    } catch (error) {
      this.failed(error);
    }
  }
}

function item(message) {
  const payload = message.damaged ? `cannot be read: ${message.damaged}` : message.payload ?? `(Base64) ${message.payload_base64}`;
  return h("li", {},
    h("p", {}, h("span", { class: "topic" }, message.topic), h("span", { class: "quiet" }, clock(message.time)),
      h("span", { class: "quiet" }, `${count(message.bytes)} B`), message.retain ? h("span", { class: "quiet" }, "retained") : null,
      message.cut ? h("span", { class: "quiet" }, "cut") : null),
    h("code", {}, payload));
}
