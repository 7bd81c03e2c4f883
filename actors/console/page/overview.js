// What is wrong first; then how much, where, and what has happened.
import { get } from "./api.js";
import { lines } from "./charts.js";
import { clock, count, h, show, size, span, table } from "./dom.js";
import { repeat } from "./repeat.js";

// As long as it may take until brokers are asked that are there.
const LATE_MS = 4000;

export function open(place, { failed }) {
  const now = h("section", {});
  const hour = h("section", {});
  const stale = h("p", { class: "bad", role: "alert", hidden: true });
  place.append(stale, now, hour);
  let asOf = 0;
  let ended = false;
  // What is on the page must not pass for how it is now.
  const old = (why) => {
    if (ended) return;
    stale.textContent = asOf ? `All below is as it was at ${clock(asOf)}. ${why}` : why;
    stale.hidden = false;
  };
  const ends = [
    repeat(async () => {
      let status, events, lagging;
      const slow = setTimeout(() => old(`The console has not answered for ${LATE_MS / 1000} s.`), LATE_MS);
      try {
        // Without brokers there is a status all the same, which tells of it.
        const behindOrNobody = get("lagging", { limit: 10 }).catch(() => ({ rows: [] }));
        const asked = [get("status"), get("events", { limit: 15 }), behindOrNobody];
        [status, events, lagging] = await Promise.all(asked);
      } catch (error) {
        old(error.message);
        throw error;
      } finally {
        clearTimeout(slow);
      }
      stale.hidden = true;
      asOf = status.time;
      document.getElementById("where").textContent = `${status.node.name}, cluster ${status.cluster.id.slice(0, 8)}`;
      show(now, parts(status, events.rows, lagging.rows));
    }, 2000, failed),
    repeat(async () => show(hour, past((await get("rates")).rows)), 10000, failed),
  ];
  return () => {
    ended = true;
    ends.forEach((end) => end());
  };
}

function parts(status, events, lagging) {
  return [wrong(status), first(status), cards(status), nodes(status), actors(status), behind(lagging), happened(events)];
}

function wrong(status) {
  const told = [...status.node.reasons.map((each) => `This node: ${each}`), ...status.warnings];
  const more = status.warnings_left_out ? [h("li", {}, `and ${status.warnings_left_out} more`)] : [];
  if (told.length === 0) return h("p", { class: "fine" }, "Nothing is wrong.");
  return h("section", { class: "wrong", "aria-label": "What is wrong" },
    h("h2", {}, told.length === 1 ? "One thing is wrong" : `${told.length} things are wrong`),
    h("ul", {}, told.map((each) => h("li", {}, each)), more));
}

function first(status) {
  if (status.counts.stored_records > 0) return null;
  return h("p", {}, "Nothing has been published yet: ",
    h("a", { href: "#messages?topic=hello/world&payload=Hello" }, "publish a first message"), ".");
}

function cards(status) {
  const { rates, counts, cluster } = status;
  const spared = counts.raw_bytes ? `${(100 * (1 - counts.stored_bytes / counts.raw_bytes)).toFixed(1)}%` : "-";
  const card = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, value));
  return h("dl", { class: "cards", "aria-label": "In numbers" },
    card("stored a second", count(rates.stored_per_s)),
    card("delivered a second", count(rates.delivered_per_s)),
    card("MQTT clients", count(counts.connections)),
    card("Python clients", count(counts.python_clients)),
    card("sessions", count(counts.sessions)),
    card("topics", count(counts.topics)),
    card("stored", size(counts.store_bytes)),
    card("spared in the logs", spared),
    card("groups without leader", `${count(cluster.groups_without_leader)} of ${count(cluster.groups)}`));
}

function nodes(status) {
  if (status.nodes.length < 2) return null;
  return [h("h2", {}, "Nodes"), table("Nodes", [
    { title: "node", value: (row) => row.name },
    { title: "state", value: (row) => state(row.state) },
    { title: "location", value: (row) => row.location },
    { title: "leads", number: true, value: (row) => count(row.leads) },
    { title: "copies", number: true, value: (row) => count(row.copies) },
    { title: "clients", number: true, value: (row) => count(row.clients) },
  ], status.nodes)];
}

function state(text) {
  return h("span", { class: text === "serves" ? "fine" : "bad" }, text);
}

function actors(status) {
  const leaders = new Map(status.leaders.map((row) => [row.name, row]));
  const coordination = { name: "coordination", kind: "coordination", state: status.cluster.coordination ? "serves" : "does not answer" };
  return [h("h2", {}, "Processes"), table("Processes", [
    { title: "name", value: (row) => row.name },
    { title: "state", value: (row) => state(row.state) },
    { title: "node", value: (row) => row.node },
    { title: "starts", number: true, value: (row) => row.starts },
    { title: "messages a second", number: true, value: (row) => count(row.stored_per_s ?? row.delivered_per_s) },
    { title: "", value: (row) => details(row, leaders) },
  ], [coordination, ...status.actors])];
}

function details(row, leaders) {
  if (row.error) return `${row.error}; ${row.fate}`;
  if (row.kind === "broker" && row.connections !== undefined) {
    const behind = row.catching_up ? `, ${count(row.catching_up)} catching up` : "";
    const bytes = `in ${size(row.received_bytes_per_s ?? 0)}/s, out ${size(row.sent_bytes_per_s ?? 0)}/s`;
    return `${count(row.connections)} MQTT and ${count(row.python_clients)} Python clients, ${count(row.filters)} filters, ${bytes}${behind}`;
  }
  if (row.kind === "coordinator" && row.groups !== undefined) {
    const full = row.full_in_s === null ? "" : `, full in ${span(row.full_in_s)}`;
    const led = leaders.get(row.name);
    const copies = led && led.behind_records !== null ? ` with ${copiesOf(led)}, ${count(led.behind_records)} behind` : "";
    return `leads ${count(row.groups)} groups${copies}, ${size(row.used_bytes)} of ${size(row.used_bytes + row.free_bytes)}${full}`;
  }
  return "";
}

function copiesOf(led) {
  const most = led.copies_max;
  return led.copies_min === most ? (most === 1 ? "1 copy" : `${most} copies`) : `${led.copies_min} to ${most} copies`;
}

function behind(rows) {
  if (rows.length === 0) return null;
  return [h("h2", {}, "Clients that are behind"), table("Clients that are behind", [
    { title: "client", value: (row) => row.id },
    { title: "kind", value: (row) => row.kind },
    { title: "broker", value: (row) => row.broker },
    { title: "records", number: true, value: (row) => count(row.behind_records) },
  ], rows)];
}

function happened(events) {
  const rows = events.map((event) => h("tr", {}, h("th", { scope: "row" }, clock(event.time)), h("td", {}, event.text)));
  if (rows.length === 0) return null;
  return [h("h2", {}, "What has happened"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What has happened" },
    h("table", { "aria-label": "What has happened" }, h("tbody", {}, rows)))];
}

function past(rows) {
  const of = (name) => rows.filter((row) => row[name] !== undefined).map((row) => [row.time, row[name]]);
  return [h("h2", {}, "The last hour"),
    h("p", { class: "legend" }, h("span", { class: "key" }, "stored a second"), h("span", { class: "key second" }, "delivered a second")),
    lines("Messages a second in the last hour", [
      { name: "stored", style: "a", points: of("stored_per_s") },
      { name: "delivered", style: "b", points: of("delivered_per_s") },
    ])];
}
