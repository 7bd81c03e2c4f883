"""`lexicast status`: what every actor says about itself, as tables or JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lexicast.cluster.errors import LexicastError, UsageError

from .cli_common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async
from .client_address import own_ray_address

RATE_S: Final = 1.0
FAMILIES_SHOWN: Final = 20


@reported
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Show what is wrong, actors, topic groups, stores, sessions, rates and the bytes that dictionaries have saved.

    lexicast status --watch

    lexicast status --json | jq .warnings
    """
    if watch and as_json:
        raise UsageError("--watch is for people, --json for programs: give one of them")
    found = find_cluster(address, data_dir)
    target = str(found.get("address") or own_ray_address(found["data_dir"]))
    from .launch_ray import disconnect, join  # loads Ray, which takes a second: only here

    join(target)
    try:
        run_async(_watch() if watch else _once(as_json))
    finally:
        disconnect()


async def _once(as_json: bool) -> None:
    from .status import snapshot, with_rates

    before = await snapshot()
    await asyncio.sleep(RATE_S)
    now = with_rates(before, await snapshot())
    if as_json:
        typer.echo(json.dumps(now, indent=1, default=str))
    else:
        Console(highlight=False).print(render(now))


async def _watch() -> None:
    from .status import snapshot, with_rates

    before = await snapshot()
    with Live(auto_refresh=False, screen=Console().is_terminal) as live:
        while True:
            await asyncio.sleep(2 * RATE_S)
            try:
                now = await snapshot()
            except LexicastError as error:  # it may come back: whoever watches wants to see that
                live.update(Text(f"! {one_line(error)}", style="bold red"), refresh=True)
                continue
            live.update(render(with_rates(before, now)), refresh=True)
            before = now


def render(now: dict[str, Any]) -> Group:
    """Everything, what is wrong first."""
    from .status import span

    said, rates = now["coordination"], now["rates"]
    up_s = now["time"] - said["started_us"] / 1_000_000
    head = Text.assemble(
        ("lexicast ", "bold"),
        f"cluster {said['cluster_id'][:8]}, {said['groups']} topic groups, coordination up {span(up_s)}   ",
        (f"stored {rates['stored_per_s']:,.0f}/s  delivered {rates['delivered_per_s']:,.0f}/s", "bold"),
    )
    warned = [Text(f"! {warning}", style="bold yellow") for warning in now["warnings"]]
    parts: list[Any] = [head, *warned, _actors(now), _groups(now), _stores(now), _brokers(now)]
    families = [item for actor in now["sampling"].values() for item in actor.get("families", {}).items()]
    if families:
        parts.append(_families(families))
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", header_style="dim", overflow="fold")
    return table


def _actors(now: dict[str, Any]) -> Table:
    from .status import ROLES

    table = _table("actors", "name", "state", "pid", "starts", "node")
    said = now["coordination"]
    table.add_row("coordination", Text("serves", style="green"), str(said["pid"]), "", "")
    for role, kind in ROLES.items():
        for name, actor in now[role].items():
            member = said["members"][kind].get(name, {})
            wrong = "does not answer" if "error" in actor else "gave up" if actor.get("failure") else ""
            state = Text(wrong, style="red") if wrong else Text("serves", style="green")
            start = str(member["incarnation"]) if "incarnation" in member else ""
            table.add_row(name, state, str(member.get("pid", "")), start, str(member.get("node", ""))[:16])
    return table


def _groups(now: dict[str, Any]) -> Table:
    table = _table("topic groups", "leader", "groups", "epochs", "copies", "topics", "sessions")
    led: dict[str, list[tuple[int, int]]] = {}
    for epoch, leader, in_sync in now["coordination"]["group_states"].values():
        led.setdefault(leader, []).append((epoch, len(in_sync)))
    for leader, states in sorted(led.items()):
        store = now["coordinators"].get(leader, {}).get("store", {})
        row = [str(len(states)), _range([e for e, _ in states]), _range([c for _, c in states])]
        table.add_row(leader, *row, *[f"{store[key]:,}" for key in ("topics", "sessions") if store])
    return table


def _stores(now: dict[str, Any]) -> Table:
    from .status import size, span

    table = _table("stores", "coordinator", "stored/s", "to disk", "used", "room", "kept for")
    for name, actor in sorted(now["coordinators"].items()):
        store = actor.get("store", {})
        if store:
            kept = now["time"] - store["oldest_us"] / 1_000_000 if store["oldest_us"] else 0
            room = Text("full", style="bold red") if store["full"] else Text(size(store["free_bytes"]))
            row = [f"{actor.get('rates', {}).get('stored_per_s', 0):,.0f}", size(actor.get("uncommitted_bytes", 0))]
            table.add_row(name, *row, size(store["used_bytes"]), room, span(kept))
    return table


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _brokers(now: dict[str, Any]) -> Table:
    from .status import size

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


def _families(families: list[tuple[str, dict[str, Any]]]) -> Table:
    from .status import size

    shown = sorted(families, key=lambda item: -item[1]["raw_bytes"])[:FAMILIES_SHOWN]
    more = f", {FAMILIES_SHOWN} of {len(families)}" if len(families) > FAMILIES_SHOWN else ""
    columns = ("messages", "raw", "sent", "saved", "", "codec")
    table = _table(f"families (of the messages sampled, dictionaries included{more})", "family", *columns)
    for name, family in shown:
        sent = family["sent_bytes"] + family["dictionary_bytes"]
        saved = family["raw_bytes"] - sent
        row = [f"{family['messages']:,}", size(family["raw_bytes"]), size(sent), size(saved)]
        row.append(f"{100 * saved / max(family['raw_bytes'], 1):.1f}%")
        table.add_row(Text(name), *row, str(family["codec"] or ""))
    return table
