"""`lexicast status`: what every actor says about itself, as tables or JSON.

A broker is asked, over its link, with the key from the data folder; Ray is not loaded but to find the brokers of a
cluster that is given by its Ray address.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError

from ..client.address import own_ray_address, resolver
from ..client.known_brokers import Resolve
from ..status.leaders import leader_reports
from ..status.over_link import ask_any_broker, ask_broker
from ..status.printable import printable
from ..status.read_console import ReadConsole
from ..status.report import ROLES, between, saved_bytes, size, span
from .common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async

Snapshot: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]

WATCH_S: Final = 2.0
FAMILIES_SHOWN: Final = 20
CLIENTS_SHOWN: Final = 1_000


@reported
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    clients: Annotated[
        bool, typer.Option("--clients", help=f"The clients that are connected, {CLIENTS_SHOWN} of each broker at most.")
    ] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Show what is wrong, actors, topic groups, stores, sessions, rates and the bytes that dictionaries have saved.

    lexicast status --watch

    lexicast status --json | jq .warnings

    lexicast status --clients
    """
    if watch and (as_json or clients):
        raise UsageError("--watch is for people and for the whole: give it alone")
    found = find_cluster(address, data_dir)
    resolve = resolver(found.get("address"), found.get("data_dir"), None)
    snapshot = partial(cluster_snapshot, resolve, found)
    if watch:
        run_async(_watch(snapshot))
    elif clients:
        run_async(_clients(resolve, as_json))
    else:
        run_async(_once(snapshot, as_json))


async def cluster_snapshot(resolve: Resolve, found: dict[str, Any]) -> dict[str, Any]:
    """What a broker tells of the cluster; where none can be asked, what Ray tells. Raises LexicastError."""
    try:
        told: dict[str, Any] = await ask_any_broker(await resolve(), "cluster")
        return told
    except UnavailableError as error:
        try:
            return await asyncio.to_thread(_over_ray, str(found.get("address") or own_ray_address(found["data_dir"])))
        except LexicastError:
            raise error from None


def _over_ray(address: str) -> dict[str, Any]:
    """Slowly, without any broker. Raises UnavailableError."""
    from ..launch.ray_nodes import connect_ray, disconnect_ray  # loads Ray, which takes a second: only here
    from ..status.over_ray import snapshot

    connect_ray(address)
    try:
        return asyncio.run(snapshot())
    finally:
        disconnect_ray()


async def _once(snapshot: Snapshot, as_json: bool) -> None:
    now = await snapshot()
    if as_json:
        typer.echo(json.dumps(now, indent=1, default=str))
    else:
        ReadConsole(highlight=False).print(render(now))


async def _watch(snapshot: Snapshot) -> None:
    from rich.live import Live  # one look needs no threads

    with Live(auto_refresh=False, screen=Console().is_terminal) as live:
        while True:
            try:
                shown: Group | Text = render(await snapshot())
            except LexicastError as error:  # it may come back: whoever watches wants to see that
                shown = Text(f"! {printable(one_line(error))}", style="bold red")
            live.update(shown, refresh=True)
            await asyncio.sleep(WATCH_S)


async def _clients(resolve: Resolve, as_json: bool) -> None:
    """Every broker's clients. Raises LexicastError where none answers."""
    found: dict[str, list[dict[str, Any]]] = {}
    endpoints = await resolve()
    for endpoint in endpoints:
        try:
            found[endpoint.name] = await ask_broker(endpoint, "clients", CLIENTS_SHOWN)
        except (LexicastError, OSError) as error:
            typer.echo(f"lexicast: {endpoint.name}: {one_line(error)}", err=True)
    if not found:
        raise UnavailableError("no broker answers")
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = _table("clients", "id", "kind", "address", "broker", "connected", "filters", "published", "")
    for broker, listed in found.items():
        for client in listed:
            since = span(time.time() - client["since_us"] / 1_000_000)
            counts = [f"{client[key]:,}" for key in ("subscriptions", "published_records")]
            behind = "behind" if client["behind"] else ""
            table.add_row(
                Text(printable(client["id"])), client["kind"], client["address"], broker, since, *counts, behind
            )
    ReadConsole(highlight=False).print(table)


def render(now: dict[str, Any]) -> Group:
    """Everything, what is wrong first."""
    said, rates = now["coordination"], now["rates"]
    up = f"up {span(now['time'] - said['started_us'] / 1_000_000)}" if "started_us" in said else "away"
    head = Text.assemble(
        ("lexicast ", "bold"),
        f"cluster {said['cluster_id'][:8]}, {said['groups']} topic groups, coordination {up}   ",
        (f"stored {rates['stored_per_s']:,.0f}/s  delivered {rates['delivered_per_s']:,.0f}/s", "bold"),
        f"  MQTT publishers {sum([b.get('mqtt', {}).get('publishers', 0) for b in now['brokers'].values()]):,}",
    )
    warned = [Text(f"! {printable(warning)}", style="bold yellow") for warning in now["warnings"]]
    parts: list[Any] = [head, *warned, _actors(now), _groups(now), _stores(now), _brokers(now)]
    tables = (_content(now), _matching(now), _overlay(now), _bridges(now), _backups(now))
    parts += [table for table in tables if table is not None]
    if refusals := _refusals(now):
        table = _table("refused since the start", "name", "by reason")
        for name, refused in refusals:
            table.add_row(name, refused)
        parts.append(table)
    families = [item for actor in now["sampling"].values() for item in actor.get("families", {}).items()]
    if families:
        brokers = now["brokers"].values()
        aware = sum([actor.get("mqtt", {}).get("aware", 0) + actor.get("clients", 0) for actor in brokers])
        parts.append(_families(families, aware))
    if (links := _links(now)) is not None:
        parts.append(links)
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", header_style="dim", overflow="fold")
    return table


def _actors(now: dict[str, Any]) -> Table:
    table = _table("actors", "name", "state", "pid", "starts", "node")
    said = now["coordination"]
    away = "error" in said
    state = Text("does not answer", style="red") if away else Text("serves", style="green")
    table.add_row("coordination", state, str(said.get("pid", "")), "", "")
    for role, kind in ROLES.items():
        for name, actor in now.get(role, {}).items():
            member = said["members"].get(kind, {}).get(name, {})
            wrong = "does not answer" if "error" in actor else "gave up" if actor.get("failure") else ""
            state = Text(wrong, style="red") if wrong else Text("serves", style="green")
            start = str(member["incarnation"]) if "incarnation" in member else ""
            table.add_row(name, state, str(member.get("pid", "")), start, str(member.get("node", ""))[:16])
    return table


def _groups(now: dict[str, Any]) -> Table:
    table = _table("topic groups", "leader", "groups", "epochs", "copies", "behind", "topics", "sessions")
    for leader, led in leader_reports(now).items():
        store = now["coordinators"].get(leader, {}).get("store", {})
        row = [str(led.groups), between(led.epoch_min, led.epoch_max), between(led.copies_min, led.copies_max)]
        row.append("" if led.behind_records is None else f"{led.behind_records:,}")
        table.add_row(leader, *row, *[f"{store[key]:,}" for key in ("topics", "sessions") if store])
    return table


def _stores(now: dict[str, Any]) -> Table:
    table = _table("stores", "coordinator", "stored/s", "to disk", "used", "room", "full in", "kept for")
    for name, actor in sorted(now["coordinators"].items()):
        store = actor.get("store", {})
        if store:
            kept = now["time"] - store["oldest_us"] / 1_000_000 if store["oldest_us"] else 0
            room = Text("full", style="bold red") if store["full"] else Text(size(store["free_bytes"]))
            row = [f"{actor.get('rates', {}).get('stored_per_s', 0):,.0f}", size(actor.get("uncommitted_bytes", 0))]
            left_s = actor.get("full_in_s")
            full_in = "" if left_s is None else span(left_s)
            table.add_row(name, *row, size(store["used_bytes"]), room, full_in, span(kept))
    return table


def _brokers(now: dict[str, Any]) -> Table:
    columns = ("MQTT", "sessions", "Python", "filters", "published/s", "delivered/s", "behind", "saved in logs")
    table = _table("brokers", "name", *columns)
    for name, actor in now["brokers"].items():
        mqtt, rates = actor.get("mqtt", {}), actor.get("rates", {})
        row = [f"{mqtt.get(key, 0):,}" for key in ("connections", "sessions")]
        row += [f"{actor.get(key, 0):,}" for key in ("clients", "filters")]
        row += [f"{rates.get(key, 0):,.0f}" for key in ("published_per_s", "delivered_per_s")]
        stored = actor.get("stored", {"raw_bytes": 0, "stored_bytes": 0})
        saved = size(stored["raw_bytes"] - stored["stored_bytes"])
        table.add_row(name, *row, f"{actor.get('catching_up', 0):,}", saved)
    return table


def _matching(now: dict[str, Any]) -> Table | None:
    """What matchers hold and what brokers were spared, where there are matchers."""
    if not now.get("matchers"):
        return None
    cells = now["coordination"].get("cells", {})
    title = "matchers"
    if cells.get("cells"):
        changed = [f"{cells[key]:,} {what}" for key, what in _CELLS_CHANGED if cells[key]]
        what = [f"{cells['cells']:,} cells by {' and '.join(cells['columns'])}", *changed]
        title += f": {', '.join(what)}"
    table = _table(title, "name", "brokers", "conditions", "filters", "asked about", "given", "spared", "unanswered")
    for name, actor in now["matchers"].items():
        row = [f"{actor.get(key, 0):,}" for key in ("brokers", "conditions", "filters", "asked_records")]
        table.add_row(name, *row, "", "", "")
    for name, actor in now["coordinators"].items():
        said = actor.get("matching", {})
        row = [f"{said.get(key, 0):,}" for key in ("asked_records", "given_records", "withheld_records")]
        table.add_row(name, "", "", f"{said.get('filters', 0):,}", *row, f"{said.get('unanswered_parts', 0):,}")
    return table


def _overlay(now: dict[str, Any]) -> Table | None:
    """How matchers reach each other, and how they are reached, where they form an overlay."""
    columns = ("neighbours", "links", "circuits", "routed", "hops, mean", "most", "passed on", "lost")
    table = _table("matchers' overlay: who is linked to whom, what was routed", "name", *columns)
    for name, actor in now.get("matchers", {}).items():
        if said := actor.get("overlay"):
            row = [f"{said.get(key, 0):,}" for key in ("neighbours", "neighbour_links", "circuits", "routed")]
            table.add_row(name, *row, *_hops(said), f"{said.get('relayed', 0):,}", f"{said.get('lost', 0):,}")
    for name, actor in now["brokers"].items():
        if (said := actor.get("overlay")) and said.get("entries"):
            table.add_row(name, "", f"{said['entries']:,}", f"{said.get('circuits', 0):,}")
    for name, actor in now["coordinators"].items():
        if said := actor.get("matching", {}).get("overlay"):
            row = [f"{said.get('entries', 0):,}", "", f"{said.get('routed', 0):,}"]
            table.add_row(name, "", *row, *_hops(said), "", f"{said.get('lost', 0):,}")
    return table if table.row_count else None


def _hops(said: dict[str, Any]) -> tuple[str, str]:
    return f"{said.get('hops_mean', 0.0):.2f}", f"{said.get('hops_max', 0):,}"


_CELLS_CHANGED: Final = (
    ("split", "split"),
    ("with_more_copies", "with more copies"),
    ("handed_over", "being handed over"),
)


def _bridges(now: dict[str, Any]) -> Table | None:
    """What goes to other brokers and comes from them, where there are bridges."""
    told = {name: actor for name, actor in now.get("bridges", {}).items() if "error" not in actor}
    if not told:
        return None
    columns = ("to", "state", "lag", "sent", "received", "looped", "again", "errors")
    table = _table("bridges, since the start", "name", *columns)
    for name, actor in told.items():
        since = span(now["time"] - actor["since_us"] / 1_000_000) if actor["since_us"] else ""
        state = Text(f"connected {since}", style="green") if actor["connected"] else Text(f"away {since}", style="red")
        looped, again = (actor[f"{key}_out"] + actor[f"{key}_in"] for key in ("looped", "retried"))
        row = [f"{actor.get(key, 0):,}" for key in ("lag_records", "sent", "received")]
        table.add_row(name, Text(actor["address"]), state, *row, f"{looped:,}", f"{again:,}", f"{actor['errors']:,}")
    return table


def _backups(now: dict[str, Any]) -> Table | None:
    """Who stands in for each broker, where there are several."""
    backups = now["coordination"].get("backups", {})
    if not any(name for each in backups.values() for name in each):
        return None
    table = _table("backups", "of", "in its location", "elsewhere")
    for name, each in backups.items():
        table.add_row(name, *each)
    return table


def _content(now: dict[str, Any]) -> Table | None:
    """What conditions of content subscriptions cost, where there are any."""
    told = [(name, actor.get("content", {})) for name, actor in now["brokers"].items()]
    found = {name: content for name, content in told if content.get("predicates")}
    if not found:
        return None
    columns = ("subscribers", "conditions", "no index", "looked at", "matched", "each took", "unread")
    table = _table("content subscriptions", "broker", *columns)
    for name, content in found.items():
        looked_at = content["matched_records"] + content["skipped_records"]
        row = [f"{content[key]:,}" for key in ("subscribers", "predicates", "residual")]
        row += [f"{looked_at:,}", f"{content['matched_records']:,}", f"{content['us_a_record']:,.1f} us"]
        table.add_row(name, *row, f"{sum(content['unread_payloads'].values()):,}")
    return table


def _refusals(now: dict[str, Any]) -> list[tuple[str, str]]:
    """(actor, what it has refused, by reason), of those that have refused something."""
    found = []
    for role in ("brokers", "coordinators"):
        for name, actor in now.get(role, {}).items():
            connections, entries = actor.get("mqtt", {}).get("refused", {}), actor.get("refused", {})
            words = [f"connections: {_counted(connections)}" if connections else ""]
            words.append(f"publications: {_counted(entries)}" if entries else "")
            logins = (actor.get("mqtt", {}).get("logins") or {}).get("refused", {})
            words.append(f"logins: {_counted(logins)}" if logins else "")
            doors = [actor.get("mqtt", {}).get(door) or {} for door in ("tls", "wss")]
            handshakes: Counter[str] = sum([Counter(door.get("failed", {})) for door in doors], Counter())
            words.append(f"TLS handshakes: {_counted(handshakes)}" if handshakes else "")
            if refused := "; ".join(filter(None, words)):
                found.append((name, refused))
    return found


def _counted(counts: dict[str, int]) -> str:
    return ", ".join([f"{count:,} {reason}" for reason, count in sorted(counts.items())])


def _links(now: dict[str, Any]) -> Table | None:
    """What the links of clients that know dictionaries got, paid for them and saved by them; None: there are none."""
    columns = ("links", "with one", "got", "paid", "saved", "worst link")
    table = _table("links of clients that know dictionaries, since the start", "broker", *columns)
    for name, actor in now["brokers"].items():
        links = actor.get("links")
        if links and links["links"]:
            counts = [f"{links[key]:,}" for key in ("links", "with_dictionary", "dictionaries")]
            sizes = [size(links[key]) for key in ("paid_bytes", "saved_bytes", "worst_bytes")]
            table.add_row(name, *counts, *sizes)
    return table if table.row_count else None


def _families(families: list[tuple[str, dict[str, Any]]], aware: int) -> Table:
    shown = sorted(families, key=lambda item: -item[1]["raw_bytes"])[:FAMILIES_SHOWN]
    more = f", {FAMILIES_SHOWN} of {len(families)}" if len(families) > FAMILIES_SHOWN else ""
    # Nothing is saved on the link of a client that knows no dictionaries.
    title = "families (of the messages sampled, dictionaries included" if aware else "families (sampled: no client here"
    title += f" knows dictionaries{more})" if not aware else f", to {aware:,} clients that know them{more})"
    saved_title = "saved" if aware else "possible"
    table = _table(title, "family", "messages", "raw", "sent", saved_title, "", "codec")
    for name, family in shown:
        saved = saved_bytes(family)
        row = [f"{family['messages']:,}", size(family["raw_bytes"]), size(family["raw_bytes"] - saved), size(saved)]
        row.append(f"{100 * saved / max(family['raw_bytes'], 1):.1f}%")
        table.add_row(Text(printable(name)), *row, str(family["codec"] or ""))
    return table
