// Questions in SQL about the past, where Spark is there; where it is not, what is missing.
import { get, post } from "./api.js";
import { count, h, show, table } from "./dom.js";

const EXAMPLE = "SELECT topic, count(*) AS messages, sum(raw_bytes) AS bytes\nFROM history GROUP BY topic ORDER BY messages DESC";
const COLUMNS = "topic, time, payload, publisher, qos, retained, raw_bytes, stored_bytes, encoding, properties, expiry, group, epoch, offset, dictionary";

export function open(place, { failed }) {
  let ended = false;
  let running = false;
  // Whoever leaves waits for no answer, and keeps Spark from nobody.
  const leaving = new AbortController();
  const text = (attributes) => h("input", { spellcheck: "false", autocapitalize: "none", autocomplete: "off", ...attributes });
  const statement = h("textarea", { name: "statement", rows: "5", spellcheck: "false", required: true });
  statement.value = EXAMPLE;
  const filter = text({ name: "filter", value: "#", required: true });
  const since = h("select", { name: "since" }, ["10m", "1h", "1d", "7d", "beginning"].map((each) => h("option", { value: each }, each)));
  since.value = "1h";
  const where = text({ name: "where", placeholder: "delay > 30" });
  const fields = h("input", { type: "checkbox", name: "fields" });
  const limit = h("input", { name: "limit", type: "number", min: "1", max: "1000", value: "100" });
  const ask = h("button", { class: "main", type: "submit" }, "Ask");
  const state = h("p", { class: "quiet", role: "status" });
  const answer = h("section", { "aria-label": "Answer" });
  const submit = async (event) => {
    event.preventDefault();
    ask.disabled = true;
    state.textContent = running ? "Spark computes ..." : "Spark starts, which takes half a minute, and then computes ...";
    show(answer);
    try {
      const told = await post("sql", {
        statement: statement.value, filter: filter.value, since: since.value, where: where.value,
        schema: fields.checked ? "json" : "", limit: Number(limit.value),
      }, {}, leaving.signal);
      if (ended) return;
      running = true;
      state.textContent = `${count(told.rows.length)} rows in ${told.took_s} s${told.more ? "; there are more" : ""}`;
      show(answer, told.rows.length ? rows(told) : null);
    } catch (error) {
      if (ended) return;
      state.textContent = "";
      if (error.status === 401) failed(error);
      else show(answer, h("p", { class: "bad", role: "alert" }, error.message));
    } finally {
      ask.disabled = false;
    }
  };
  const form = [
    h("form", { onsubmit: submit },
      h("label", { class: "all" }, "A question about the table history", statement),
      h("label", { class: "wide" }, "Topic filter: + one level, # all below", filter),
      h("label", { class: "wide" }, "Only where (a condition)", where),
      h("label", {}, "Past", since),
      h("label", {}, "Rows at the most", limit),
      h("label", { class: "check" }, fields, "Fields of JSON payloads as columns"),
      ask),
    h("p", { class: "quiet" }, `Its columns: ${COLUMNS}.`), state, answer];
  const look = async () => {
    try {
      const told = await get("sql");
      running = told.running;
      if (!ended) place.replaceChildren(...(told.available ? form : missing(told.why_not)));
    } catch (error) {
      if (!ended) failed(error);
    }
  };
  look();
  return () => {
    ended = true;
    leaving.abort();
  };
}

function missing(why) {
  return [h("p", {}, "Questions in SQL about all that was published are answered by Spark, in the cluster's Ray."),
    h("p", { class: "bad", role: "status" }, why),
    h("p", { class: "quiet" }, "Where lexicast was set up by make, ", h("code", {}, "make spark"),
      " installs it on this node; start the cluster anew after that. The past of topics, without SQL, is under ",
      h("a", { href: "#messages" }, "Messages"), ".")];
}

function rows(told) {
  const number = (at) => told.rows.every((row) => row[at] === null || typeof row[at] === "number");
  const cell = (value) => (value === null ? "" : typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }) : String(value));
  return table("Answer", told.columns.map((title, at) => ({ title, number: at > 0 && number(at), value: (row) => cell(row[at]) })), told.rows);
}
