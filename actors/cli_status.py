"""`lexicast status`: what every actor says about itself, as tables or JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lexicast.cluster.errors import LexicastError, UsageError

from .cli_common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async
from .client_address import read_run
from .ray_token import use_own_token

RATE_S: Final = 1.0
CALL_TIMEOUT_S: Final = 10.0
KIB: Final = 1024


@reported
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Show actors, groups, epochs, sessions, rates and the bytes that dictionaries have saved.

    lexicast status --watch

    lexicast status --json | jq .rates
    """
    if watch and as_json:
        raise UsageError("--watch is for people, --json for programs: give one of them")
    found = find_cluster(address, data_dir)
    target = str(found.get("address") or read_run(found["data_dir"])["ray_address"])
    if address is None:
        use_own_token()
    from .launch_ray import disconnect, join  # loads Ray, which takes a second: only here

    if target.startswith("ray://"):
        raise UsageError("run `lexicast status` on a node of the Ray cluster, with --address auto")
    join(target)
    try:
        run_async(_watch() if watch else _once(as_json))
    finally:
        disconnect()


async def _once(as_json: bool) -> None:
    before = await snapshot()
    await asyncio.sleep(RATE_S)
    now = with_rates(before, await snapshot())
    if as_json:
        typer.echo(json.dumps(now, indent=1, default=str))
    else:
        Console(highlight=False).print(render(now))


async def _watch() -> None:
    before = await snapshot()
    with Live(auto_refresh=False) as live:
        while True:
            await asyncio.sleep(2 * RATE_S)
            now = await snapshot()
            live.update(render(with_rates(before, now)), refresh=True)
            before = now


async def snapshot() -> dict[str, Any]:
    """{"time", "coordination", "coordinators", "brokers", "sampling"}; an actor that does not answer says why."""
    from .handles import COORDINATION, find_actor

    coordination = await asyncio.to_thread(find_actor, COORDINATION)
    said = await coordination.call_retried("status", retry_s=CALL_TIMEOUT_S)
    roles = {"coordinators": "coordinator", "brokers": "broker", "sampling": "sampler"}
    result: dict[str, Any] = {"time": time.time(), "coordination": said}
    for role, kind in roles.items():
        names = sorted({*said["members"][kind], *(said["coordinators"] if kind == "coordinator" else ())})
        answers = await asyncio.gather(*[_ask(name) for name in names])
        result[role] = dict(zip(names, answers, strict=True))
    return result


async def _ask(name: str) -> dict[str, Any]:
    from .handles import find_actor

    try:
        actor = await asyncio.to_thread(find_actor, name)
        answer: dict[str, Any] = await actor.call("status", timeout_s=CALL_TIMEOUT_S)
    except LexicastError as error:
        return {"error": one_line(error)}
    return {key: _plain(value) for key, value in answer.items()}


def _plain(value: Any) -> Any:
    """Records of fields as dicts, so that all of it is JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def with_rates(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """`now`, and what each actor's counters grew by, a second."""
    seconds = max(now["time"] - before["time"], 1e-3)
    rates: dict[str, float] = {}
    for role, counter, key in (
        ("coordinators", "published_records", "stored_per_s"),
        ("brokers", "published_records", "published_per_s"),
        ("brokers", "delivered_records", "delivered_per_s"),
    ):
        # an actor that restarted counts from 0: its rate is 0 once, never negative
        grown = [
            max(0, actor.get(counter, 0) - before[role].get(name, {}).get(counter, 0))
            for name, actor in now[role].items()
            if counter in before[role].get(name, {})
        ]
        rates[key] = round(sum(grown) / seconds, 1)
    return {**now, "rates": rates}


def render(now: dict[str, Any]) -> Group:
    """The tables."""
    said = now["coordination"]
    rates = "  ".join(f"{key.removesuffix('_per_s')} {value:,.0f}/s" for key, value in now["rates"].items())
    head = f"cluster {said['cluster_id'][:8]}  {said['groups']} topic groups  {rates}"
    parts: list[Any] = [head, _actors(now), _groups(now), _traffic(now)]
    families = [item for actor in now["sampling"].values() for item in actor.get("families", {}).items()]
    if families:
        parts.append(_families(families))
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _actors(now: dict[str, Any]) -> Table:
    table = _table("actors", "name", "pid", "node", "incarnation", "state")
    said = now["coordination"]
    table.add_row("coordination", str(said["pid"]), "", "", "serves")
    for role, kind in (("coordinators", "coordinator"), ("brokers", "broker"), ("sampling", "sampler")):
        for name, actor in now[role].items():
            member = said["members"][kind].get(name, {})
            state = actor.get("error") or actor.get("failure") or "serves"
            row = [str(member.get(key, "")) for key in ("pid", "node", "incarnation")]
            table.add_row(name, row[0], row[1][:16], row[2], state)
    return table


def _groups(now: dict[str, Any]) -> Table:
    table = _table("topic groups", "leader", "groups", "epochs", "records stored", "waiting for the disk", "store")
    led: dict[str, list[int]] = {}
    for epoch, leader, _ in now["coordination"]["group_states"].values():
        led.setdefault(leader, []).append(epoch)
    for leader, epochs in sorted(led.items()):
        actor = now["coordinators"].get(leader, {})
        span = str(min(epochs)) if min(epochs) == max(epochs) else f"{min(epochs)} to {max(epochs)}"
        used = actor.get("store", {}).get("used_bytes")
        table.add_row(
            leader,
            str(len(epochs)),
            span,
            f"{actor.get('published_records', 0):,}",
            size(actor.get("uncommitted_bytes", 0)),
            "" if used is None else size(used),
        )
    return table


def _traffic(now: dict[str, Any]) -> Table:
    table = _table(
        "brokers", "name", "MQTT connections", "sessions", "Python clients", "published", "delivered", "behind"
    )
    for name, actor in now["brokers"].items():
        mqtt = actor.get("mqtt", {})
        table.add_row(
            name,
            *[f"{mqtt.get(key, 0):,}" for key in ("connections", "sessions")],
            *[f"{actor.get(key, 0):,}" for key in ("clients", "published_records", "delivered_records", "catching_up")],
        )
    return table


def _families(families: list[tuple[str, dict[str, Any]]]) -> Table:
    table = _table("families (of the messages sampled)", "family", "messages", "raw", "sent", "saved", "codec")
    for name, family in sorted(families, key=lambda item: -item[1]["raw_bytes"]):
        sent = family["sent_bytes"] + family["dictionary_bytes"]
        saved = 100 - 100 * sent / max(family["raw_bytes"], 1)
        table.add_row(
            name,
            f"{family['messages']:,}",
            size(family["raw_bytes"]),
            size(sent),
            f"{saved:.1f}%",
            str(family["codec"] or ""),
        )
    return table


def size(count: float) -> str:
    """Bytes for people: 12,345,678 -> "11.8 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < KIB:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= KIB
    return f"{count:,.1f} TiB"
