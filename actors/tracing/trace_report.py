"""What traces have found out, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ..status.report import span

# The steps of a marked publication, of which `{}` is where it is then.
HOPS: Final = {
    "sent": "sent from here",
    "received": "{} has it",
    "placed": "{}, its group's leader, has given it its place",
    "durable": "{}'s disk has it, as far as the leader knows",
    "committed": "committed: every copy that counts has it",
    "given": "{} gives it to its subscribers",
    "acknowledged": "{} has the acknowledgement",
    "answered": "acknowledged here",
    "arrived": "with a subscriber of {}",
}


def place_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Where a publication is; see `asking.whereabouts`."""
    time = datetime.fromisoformat(found["time"])
    ago = span(max(0.0, (datetime.now(UTC) - time).total_seconds()))
    by = f" by {found['publisher']}" if found["publisher"] else ""
    retained = ", retained" if found["retain"] else ""
    yield f"{found['topic']} at {found['position']}"
    yield f"  placed     {found['time']}, {ago} ago{by}: QoS {found['qos']}, {found['bytes']:,} bytes{retained}"
    yield from _group_lines(found["position"].split(":")[0], found["group"])
    for name, broker in found["brokers"].items():
        yield f"  {name:<10} {_broker_line(broker)}"
        for client, state in broker.get("subscribers", {}).get("clients", {}).items():
            yield f"             {client}: {_CLIENT_STATES[state]}"
    for share, where in found["shares"].items():
        yield f"  share      {share}: {_SHARE_STATES.get(where) or f'with a member at {where}, not done'}"
    for name, why in found["unreached"].items():
        yield f"  {name:<10} cannot be asked: {why}"


def _group_lines(number: str, group: Mapping[str, Any] | None) -> Iterator[str]:
    if group is None:
        yield f"  group      {number}, which nobody leads now"
        return
    counting, copies = group["in_sync"], group["copies"]
    having = sum([copies.get(name, False) for name in counting])
    state = "committed" if group["committed"] else "not committed yet"
    yield f"  group      {number}, led by {group['coordinator']} in epoch {group['epoch']}"
    yield f"  {state:<10} {having} of {len(counting)} copies that count have it"
    for name in sorted({*counting, *copies}):
        has = "has it" if copies.get(name) else "lacks it"
        yield f"             {name} {has}" + ("" if name in counting else " (does not count)")


_CLIENT_STATES: Final = {"waits": "yet to be given it", "sent": "sent it, not acknowledged", "given": "given it"}
_SHARE_STATES: Final = {"unread": "yet to be read", "waiting": "waits for a member that has room", "done": "done"}


def _broker_line(broker: Mapping[str, Any]) -> str:
    told = broker.get("subscribers")
    if not broker["subscribed"]:
        return "no subscription"
    state = "has been sent it" if broker["sent"] else "is behind, and yet to be sent it"
    if told is None:
        return f"subscribed, {state}"
    waiting = f", {told['waiting']:,} of them yet to be given it" if told["waiting"] else ""
    sampled = " (and a sampling broker looks at parts of the topic)" if told["samples"] else ""
    return f"{state}; {told['count']:,} subscriber{'' if told['count'] == 1 else 's'}{waiting}{sampled}"


def hop_lines(sent: Mapping[str, Any]) -> Iterator[str]:
    """The hops of a marked publication; see `asking.send_marked`."""
    yield f"{sent['topic']} at {sent['position'] or 'a place that is not known'}, marked {sent['mark']}"
    before_us = 0
    for hop in sent["hops"]:
        what = HOPS[hop["what"]].format(hop["at"])
        yield f"  {hop['after_us'] / 1_000:9.3f} ms  {_signed((hop['after_us'] - before_us) / 1_000):>9}  {what}"
        before_us = hop["after_us"]
    for name, clock in sent["clocks"].items():
        if clock["ahead_us"]:
            way = "ahead of" if clock["ahead_us"] > 0 else "behind"
            far, unsure = abs(clock["ahead_us"]) / 1_000, clock["uncertain_us"] / 1_000
            yield f"  {name}'s clock is {far:.3f} ms {way} this one (give or take {unsure:.3f}): that is taken off"
    for name, why in sent["missing"].items():
        yield f"  {name}: {why}"


def _signed(ms: float) -> str:
    return f"+{ms:.3f}"
