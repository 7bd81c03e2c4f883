"""What every actor says about itself, gathered; and what of it an operator should know, in plain words."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, Final

from lexicast.cluster.errors import LexicastError

from .handles import COORDINATION, find_actor

CALL_TIMEOUT_S: Final = 10.0
KIB: Final = 1024
# Beyond this much sequenced and not yet durable the disk is what everybody waits for.
SLOW_DISK_BYTES: Final = 16 * KIB * KIB

ROLES: Final = {"coordinators": "coordinator", "brokers": "broker", "sampling": "sampler"}
_RATES: Final = (
    ("coordinators", "published_records", "stored_per_s"),
    ("brokers", "published_records", "published_per_s"),
    ("brokers", "delivered_records", "delivered_per_s"),
)


async def snapshot() -> dict[str, Any]:
    """{"time", "coordination", "coordinators", "brokers", "sampling", "warnings"}, all of it fit for JSON.

    An actor that does not answer says why under "error". Raises UnavailableError when the coordination server does
    not answer.
    """
    coordination = await asyncio.to_thread(find_actor, COORDINATION)
    said = await coordination.call_retried("status", retry_s=CALL_TIMEOUT_S)
    result: dict[str, Any] = {"time": time.time(), "coordination": said}
    for role, kind in ROLES.items():
        names = sorted({*said["members"][kind], *(said["coordinators"] if kind == "coordinator" else ())})
        answers = await asyncio.gather(*[_ask(name) for name in names])
        result[role] = dict(zip(names, answers, strict=True))
    result["warnings"] = list(warnings(result))
    return result


async def _ask(name: str) -> dict[str, Any]:
    try:
        actor = await asyncio.to_thread(find_actor, name)
        answer: dict[str, Any] = await actor.call("status", timeout_s=CALL_TIMEOUT_S)
    except LexicastError as error:
        return {"error": " ".join(str(error).split())}
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
    """`now`, and what the counters grew by, a second: of each actor under its "rates", of all under "rates"."""
    seconds = max(now["time"] - before["time"], 1e-3)
    rates = {key: 0.0 for _, _, key in _RATES}
    actors: dict[str, dict[str, Any]] = {role: {n: dict(a) for n, a in now[role].items()} for role in ROLES}
    for role, counter, key in _RATES:
        for name, actor in actors[role].items():
            if counter in before[role].get(name, {}):
                # an actor that restarted counts from 0: its rate is 0 once, never negative
                grown = max(0, actor.get(counter, 0) - before[role][name][counter])
                actor.setdefault("rates", {})[key] = round(grown / seconds, 1)
                rates[key] = round(rates[key] + grown / seconds, 1)
    return {**now, **actors, "rates": rates}


def warnings(now: dict[str, Any]) -> Iterator[str]:
    """One sentence for everything that is not as it should be: what it is, and what to do where that can be said."""
    for role in ROLES:
        for name, actor in now[role].items():
            if "error" in actor:
                yield f"{name} does not serve ({actor['error']}); Ray starts it again by itself"
    for name, actor in now["coordinators"].items():
        yield from _of_coordinator(name, actor)
    for name, actor in now["brokers"].items():
        if paused := actor.get("mqtt", {}).get("paused_publishers", 0):
            yield f"{name}: {paused:,} MQTT publishers are paused: they send more than the cluster takes"
        if behind := actor.get("catching_up", 0):
            yield f"{name}: {behind:,} sessions catch up from storage: they take less than is published"


def _of_coordinator(name: str, actor: dict[str, Any]) -> Iterator[str]:
    store = actor.get("store", {})
    if actor.get("failure") or store.get("poisoned"):
        yield (
            f"{name} has given up after an I/O error ({actor.get('failure')}): look at the disk, stop the cluster, "
            "check the store (`python -m lexicast.storage.check`), start again"
        )
    elif store.get("full"):
        yield (
            f"{name}: publishing is refused, {size(store['free_bytes'])} are left to its store; reading goes on. Free "
            "disk space, lower storage.retention_s or retention_bytes, or raise storage.quota_bytes"
        )
    if ahead_s := store.get("clock_ahead_s"):
        yield (
            f"{name}: the clock is {span(ahead_s)} ahead of what was stored and of the time that has passed: nothing "
            f"is discarded by it for another {span(store['clock_left_s'])}. If it is right, nothing need be "
            "done (with storage.clock_confirm_s = 0 a start believes it at once); if it is wrong, set it"
        )
    if store.get("pinned"):
        yield (
            f"{name}: a process has been reading its store in one go for seconds, so that freed space cannot be used "
            "again: end it (`lexicast store`, a Spark job, or a program of your own)"
        )
    if damage := actor.get("damage"):
        counts = damage["counts"]
        kinds = ", ".join([f"{count:,} in {table}" for table, count in sorted(counts.items())])
        yield (
            f"{name}: {sum(counts.values()):,} damaged places in its store are passed over ({kinds}; first: "
            f"{damage['first'][0]}): everything else is served; stop the cluster and repair the store "
            "(`lexicast store repair`)"
        )
    if actor.get("uncommitted_bytes", 0) > SLOW_DISK_BYTES:
        yield f"{name}: {size(actor['uncommitted_bytes'])} wait for the disk: it is slower than what is published"
    for broker, peer in actor.get("brokers", {}).items():
        if behind := peer.get("groups_behind", 0):
            yield f"{broker} is behind {name} in {behind:,} topic groups: it takes less than is published"


def size(count: float) -> str:
    """Bytes for people: 12,345,678 -> "11.8 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < KIB:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= KIB
    return f"{count:,.1f} TiB"


def span(seconds: float) -> str:
    """A time for people: 5_000 -> "1 h 23 min"."""
    minutes, days = int(seconds) // 60, int(seconds) // 86_400
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if days < 2 else f"{days} days"
