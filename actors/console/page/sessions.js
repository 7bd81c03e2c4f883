// Who is connected.
import { get, post } from "./api.js";
import { count, h, say, show, span, table } from "./dom.js";
import { repeat } from "./repeat.js";

export function open(place, { failed }) {
  let after = "";
  const before = [];
  const search = h("input", { type: "search", name: "search", spellcheck: "false", autocapitalize: "none" });
  const found = h("section", { "aria-label": "Clients" });
  const draw = async () => {
    const page = await get("sessions", { search: search.value, after, limit: 100 });
    const turn = h("p", {},
      h("button", { type: "button", "data-key": "back", disabled: before.length === 0, onclick: () => { after = before.pop() ?? ""; again(); } }, "Back"), " ",
      h("button", { type: "button", "data-key": "on", disabled: page.next === null, onclick: () => { before.push(after); after = page.next; again(); } }, "Further"));
    const missing = page.missing.length ? h("p", { class: "bad" }, `${page.missing.join(", ")} does not answer`) : null;
    show(found, missing, page.rows.length ? list(page.rows) : h("p", {}, "No MQTT client is connected by such a name."), turn);
  };
  const list = (rows) => table("Clients", [
    { title: "client", value: (row) => row.id },
    { title: "kind", value: (row) => row.kind },
    { title: "from", value: (row) => row.address },
    { title: "broker", value: (row) => row.broker },
    { title: "connected", value: (row) => span(Date.now() / 1000 - row.since_us / 1e6) },
    { title: "filters", number: true, value: (row) => count(row.subscriptions) },
    { title: "published", number: true, value: (row) => count(row.published_records) },
    { title: "", value: (row) => (row.behind ? h("span", { class: "bad" }, "behind") : "") },
    { title: "", value: (row) => h("button", { type: "button", "data-key": `end ${row.id}`, "aria-label": `Disconnect ${row.id}`, onclick: () => end(row.id) }, "Disconnect") },
  ], rows);
  const end = (id) => {
    const sure = h("dialog", { "aria-label": "Disconnect a client" },
      h("p", {}, `End the connection of ${id}? It may connect again.`),
      h("form", { method: "dialog" }, h("button", { class: "main", value: "yes" }, "Disconnect"), h("button", { value: "no" }, "Leave it")));
    sure.addEventListener("close", async () => {
      sure.remove();
      if (sure.returnValue !== "yes") return;
      try {
        const told = await post("sessions/disconnect", {}, { id });
        say(told.disconnected ? `${id} was disconnected` : `${id} is not connected any more`);
        again();
      } catch (error) { failed(error); }
    });
    document.body.append(sure);
    sure.showModal();
  };
  const again = () => draw().catch(failed);
  place.append(h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); after = ""; before.length = 0; again(); } },
    h("label", { class: "wide" }, "Part of a client id", search), h("button", { class: "main", type: "submit" }, "Search")), found);
  return repeat(draw, 5000, failed);
}
