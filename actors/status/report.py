"""The report on a cluster: what every actor says about itself, and what an operator should know, in plain words. Pure.

Who is asked, and over what, is the caller's affair: a broker asks over the cluster's own links and answers `lexicast
status` (`cluster_status`), `lexicast up` asks over Ray (`over_ray`). Rates are the actors' own (`meters`), so that
one question is enough.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from lexicast.cluster.errors import LexicastError

KIB: Final = 1024
# Beyond this much sequenced and not yet durable the disk is what everybody waits for.
SLOW_DISK_BYTES: Final = 16 * KIB * KIB
# A store that is full in less than this at the present pace is worth a word.
QUOTA_WARNING_S: Final = 6 * 3_600.0

ROLES: Final = {
    "coordinators": "coordinator",
    "brokers": "broker",
    "sampling": "sampler",
    "matchers": "matcher",
    "bridges": "bridge",
    "consoles": "console",
}
# (role, the actor's own rate, what it is called)
_RATES: Final = (
    ("coordinators", "published_records", "stored_per_s"),
    ("brokers", "published_records", "published_per_s"),
    ("brokers", "delivered_records", "delivered_per_s"),
    ("brokers", "received_bytes", "received_bytes_per_s"),
    ("brokers", "sent_bytes", "sent_bytes_per_s"),
)

# What an actor that does not answer leaves behind, as `ask` tells it: "error", and what becomes of it.
Ask = Callable[[str, str], Awaitable[dict[str, Any]]]


class MissingError(LexicastError):
    """An actor does not answer. `fate`: what becomes of it, in words; `since_us`: since when, 0 when unknown."""

    def __init__(self, message: str, fate: str, since_us: int = 0) -> None:
        super().__init__(message)
        self.fate = fate
        self.since_us = since_us


TRIES_AGAIN: Final = "it tries again by itself"
MEND_IT: Final = "it does not try again: mend that, then run `lexicast down` and `lexicast up`"
STARTS_AGAIN: Final = "Ray is starting it again"
HANGS: Final = "it runs and does not answer: look at its node, or end its process, then Ray starts it again"
NODE_GONE: Final = (
    "its node is gone and Ray starts it nowhere else: `lexicast up` does when the node is back; if that will not be, "
    "`lexicast node remove` it"
)
GONE: Final = "Ray does not start it again: run `lexicast down` and `lexicast up`"
UNKNOWN: Final = "what becomes of it is not known"


async def gather(said: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """{"time", "coordination", "rates", "warnings", and by name what actors say of each of ROLES}, all fit for JSON.

    `said`: what the coordination server says; `ask(kind, name)` asks one actor. One that does not answer says why under
    "error", what becomes of it under "fate", and since when, where that is known, under "since_us".
    """
    result: dict[str, Any] = {"time": time.time(), "coordination": said}
    calls = [
        (role, name, answer_of(ask, kind, name))
        for role, kind in ROLES.items()
        for name in sorted({*said["members"].get(kind, ()), *(said["coordinators"] if kind == "coordinator" else ())})
    ]
    answers = await asyncio.gather(*[call for *_, call in calls])
    result |= {role: {} for role in ROLES}
    for (role, name, _), answer in zip(calls, answers, strict=True):
        result[role][name] = answer
    _add_lag(result)
    result["rates"] = _rates(result)
    result["warnings"] = list(warnings(result))
    return result


async def answer_of(ask: Ask, kind: str, name: str) -> dict[str, Any]:
    """What an actor says about itself; else why it does not, as `gather` has it."""
    try:
        answer = await ask(kind, name)
    except MissingError as error:
        return {"error": _line(error), "fate": error.fate, "since_us": error.since_us}
    except LexicastError as error:
        return {"error": _line(error), "fate": UNKNOWN, "since_us": 0}
    return {key: plain(value) for key, value in answer.items()}


def _add_lag(now: dict[str, Any]) -> None:
    """Of each bridge under "lag_records" how many records its shares are behind, as their coordinators say."""
    for bridge in now["bridges"].values():
        if "share" in bridge:
            shares = [of for each in now["coordinators"].values() for of in each.get("shares", {}).items()]
            mine = [share for name, share in shares if name.startswith(f"{bridge['share']}/")]
            bridge["lag_records"] = sum(share["lag_records"] for share in mine)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def plain(value: Any) -> Any:
    """Records of fields as dicts, so that all of it is JSON, and msgpack."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def _rates(now: dict[str, Any]) -> dict[str, float]:
    """Of each actor under its "rates" by the names that people read, and the sums."""
    sums = {key: 0.0 for _, _, key in _RATES}
    for role in ROLES:
        for actor in now.get(role, {}).values():
            own = actor.get("rates", {})
            named = {key: own[counter] for where, counter, key in _RATES if where == role and counter in own}
            if named:
                actor["rates"] = named
            for key, rate in named.items():
                sums[key] = round(sums[key] + rate, 1)
    return sums


class Outage(str):
    """A warning of what is not served. (Over a link it is text like the others.)"""

    __slots__ = ()


def warnings(now: dict[str, Any]) -> Iterator[str]:
    """One sentence for everything that is not as it should be: what it is, and what to do where that can be said."""
    if "error" in now["coordination"]:
        why = now["coordination"]["error"]
        yield Outage(f"coordination does not serve ({why}); data flows on, nothing can change places")
    if damage := now["coordination"].get("damage"):
        yield (
            f"coordination: {sum(damage['counts'].values()):,} damaged rows of its registry are passed over (first: "
            f"{damage['first'][0]}): what they told is known from those who call (see `lexicast recover`)"
        )
    yield from _of_copies(now["coordination"])
    yield from _of_security(now)
    away = _away(now)
    for node, names in away.items():
        yield (
            f"node {node} is away ({', '.join(names)}): others go on with what they have of it, and it goes on when it "
            f"is back; if that will not be, `lexicast node remove {node}`"
        )
    told = {name for names in away.values() for name in names}
    for role in ROLES:
        for name, actor in now.get(role, {}).items():
            if "error" in actor and name not in told:
                since_us = actor.get("since_us", 0)
                since = f" for {span(now['time'] - since_us / 1_000_000)}" if since_us else ""
                yield Outage(f"{name} has not served{since} ({actor['error']}); {actor.get('fate', UNKNOWN)}")
    for name, actor in now["coordinators"].items():
        yield from _of_coordinator(name, actor)
    for name, actor in now["brokers"].items():
        yield from _of_broker(name, actor)
    for name, actor in now.get("bridges", {}).items():
        yield from _of_bridge(name, actor, now["time"])


def _away(now: dict[str, Any]) -> dict[str, list[str]]:
    """Nodes of which nothing answers, where others do; what was on them."""
    found, nodes = {}, now["coordination"].get("nodes", {})
    actors = {name: actor for role in ROLES for name, actor in now.get(role, {}).items()}
    for name, node in nodes.items():
        of_node = (*node["coordinators"], *node["brokers"], *node.get("matchers", ()), *node.get("consoles", ()))
        members = [each for each in of_node if each in actors]
        if members and all("error" in actors[each] for each in members):
            found[name] = members
    return found if len(found) < len(nodes) else {}


def _of_copies(said: dict[str, Any]) -> Iterator[str]:
    """Groups that nobody leads, and groups that have fewer copies than they are to have."""
    lost, wanted = set(said.get("lost", ())), said.get("copies", 1)
    unknown = said.get("unknown", {})
    if unknown:
        who = ", ".join(sorted({name for missing in unknown.values() for name in missing})) or "its coordinators"
        yield Outage(
            f"who leads {len(unknown):,} topic groups is not known: the coordination server's registry has lost it, "
            f"and {who} may have what nobody else has: start what is missing, or see `lexicast recover`"
        )
    waiting: Counter[str] = Counter()
    few: Counter[int] = Counter()
    for _, leader, in_sync in said.get("group_states", {}).values():
        copies = len(set(in_sync) - lost)
        if not leader:
            continue
        if leader in lost:
            waiting[leader] += 1
        elif copies < wanted:
            few[copies] += 1
    for leader, count in sorted(waiting.items()):
        yield Outage(
            f"{count:,} topic groups wait for {leader}, which cannot be reached: nobody else has all that is in them"
        )
    why = f"{', '.join(sorted(lost))} cannot be reached" if lost else "others are catching up"
    for copies, count in sorted(few.items()):
        yield (
            f"{count:,} topic groups have {'one copy' if copies == 1 else f'{copies} copies'} of {wanted} ({why}): "
            "what is stored there alone is lost with its disk"
        )


def _of_security(now: dict[str, Any]) -> Iterator[str]:
    """Files of security that are not taken, or were lost; brokers that do not go by the newest."""
    said = now["coordination"].get("security", {})
    version = said.get("version", 0)
    if refused := said.get("refused"):
        since = span(now["time"] - refused["at_us"] / 1_000_000)
        yield (
            f"the files of [security] that were read {since} ago are not taken, those of before hold: "
            f"{refused['why']}; mend it, then `lexicast security reload`"
        )
    if said.get("paths") and not version:
        yield (
            "the coordination server has lost the files of [security]: brokers that start let nobody in before one "
            "that serves gives them back; run `lexicast security reload`"
        )
    for name, broker in now.get("brokers", {}).items():
        own = broker.get("security", {})
        if own.get("error"):
            yield f"{name} cannot take the newest files of [security], and goes by those of before: {own['error']}"
        elif own and own["version"] < version:
            yield f"{name} does not go by the newest files of [security] yet"


def _of_broker(name: str, actor: dict[str, Any]) -> Iterator[str]:
    if paused := actor.get("mqtt", {}).get("paused_publishers", 0):
        yield f"{name}: {paused:,} MQTT publishers are paused: they send more than the cluster takes"
    if actor.get("mqtt", {}).get("open"):
        yield (
            f'{name}: mqtt.allow_anonymous = "always" without rules: whoever reaches its MQTT port from other machines '
            "publishes and reads everything; give it users or rules ([security])"
        )
    doors = [actor.get("mqtt", {}).get(door) or {} for door in ("tls", "wss")]
    for warning in dict.fromkeys([warning for door in doors for warning in door.get("warnings", ())]):
        yield f"{name}: {warning}"
    if behind := actor.get("long_behind", 0):
        yield f"{name}: {behind:,} sessions have been catching up for a minute: they take less than is published"
    if undeliverable := actor.get("undeliverable", 0):
        yield f"{name}: {undeliverable:,} blocks could not be delivered to some subscribers: see its log"


def _of_bridge(name: str, actor: dict[str, Any], time_s: float) -> Iterator[str]:
    """One that is not connected, or is refused what it sends or asks for."""
    if "error" in actor:
        return
    if not actor["connected"]:
        since = f" for {span(time_s - actor['since_us'] / 1_000_000)}" if actor["since_us"] else ""
        yield (
            f"{name} is not connected to {actor['address']}{since} ({actor['last_error'] or 'it has just begun'}); it "
            "tries again by itself, and what is published meanwhile goes out then"
        )
    if waiting := actor["refused_waiting"]:
        yield (
            f"{name}: {actor['address']} refuses {waiting:,} publications, which are sent again until it takes them, "
            f"before anything else (last: {actor['last_error']}): look at that broker"
        )
    if filters := actor["filters_refused"]:
        yield (
            f"{name}: {actor['address']} does not let it subscribe to {filters} of its filters (last: "
            f"{actor['last_error']}): look at its rights there"
        )
    if refused := actor["refused_out"] + actor["refused_in"]:
        yield f"{name}: {refused:,} publications were refused for good (last: {actor['last_error']})"
    if forgotten := actor["echoes_forgotten"]:
        yield (
            f"{name}: {forgotten:,} of its own publications could not be remembered until they came back, and may have "
            "come in: use MQTT 5, or topics that do not come back"
        )


def _of_coordinator(name: str, actor: dict[str, Any]) -> Iterator[str]:
    store = actor.get("store", {})
    if actor.get("failure") or store.get("poisoned"):
        yield Outage(
            f"{name} has given up after an I/O error ({actor.get('failure')}): look at the disk, stop the cluster, "
            "check the store (`lexicast store check`), start again"
        )
    elif store.get("full"):
        yield Outage(
            f"{name}: publishing is refused, {size(store['free_bytes'])} are left to its store; reading goes on. Free "
            "disk space, lower storage.retention_s or retention_bytes, or raise storage.quota_bytes"
        )
    elif (left_s := actor.get("full_in_s")) is not None and left_s < QUOTA_WARNING_S:
        yield (
            f"{name}: its store is full in {span(left_s)} at the present pace: free disk space, lower "
            "storage.retention_s or retention_bytes, or raise storage.quota_bytes"
        )
    for slow in (actor.get("copies") or {}).get("slow", ()):
        yield f"{slow}: it stores too slowly to count in the groups that {name} leads: look at its disk"
    if aside := (actor.get("copies") or {}).get("set_aside"):
        yield (
            f"{name}: {len(aside):,} copies had gone another way than their groups' leaders and were made anew; what "
            f"only they had lies beside its store ({aside[0]}{', ...' if aside[1:] else ''}): look at it, move it away"
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
        if behind := peer.get("groups_long_behind", 0):
            yield f"{broker} has been behind {name} in {behind:,} topic groups for a minute: it takes less than comes"


def saved_bytes(family: dict[str, Any]) -> int:
    """What a family's dictionary saves of the messages that were sampled, its own bytes counted."""
    return int(family["raw_bytes"] - family["sent_bytes"] - family["dictionary_bytes"])


def between(low: int, high: int) -> str:
    """A range for people."""
    return str(low) if low == high else f"{low}-{high}"


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
