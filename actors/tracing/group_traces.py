"""A coordinator's part in traces: how far a group is, and when each copy of what was placed in it was durable.

Of publications no times are kept but the one that is stored, so nothing of this costs them anything. Who traces a
marked one has the group watched before it is sent: how far the commit, deliveries and each copy are is looked at in
each turn of the event loop, and what has moved is noted with its time. That makes turns where there would be none, so
it lasts EACH_TURN_S, in one watch at a time and a tenth of the time at most; else it is looked at each millisecond.
It is looked at, too, as what was placed meanwhile is committed, before anything of that goes out.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import count
from typing import Any, Final, NamedTuple

from lexicast.cluster.errors import LimitError, UsageError
from lexicast.cluster.sequencer import Group

from ..coordinator.led_groups import LedGroups
from ..coordinator.peers import BrokerPeer
from ..coordinator.shares.led_shares import LedShares

LASTS_S: Final = 10.0
EACH_TURN_S: Final = 0.25
# After a watch that looked each turn for so long the next one does so many times later.
RESTS: Final = 9
SELDOM_S: Final = 0.001
WATCHES_MAX: Final = 8
# What moved of one group while it is watched; the oldest go.
ROWS_MAX: Final = 4_096


class _Row(NamedTuple):
    """How far a group was: the first offsets that are not committed, not delivered, and not durable in each member."""

    time_us: int
    committed: int
    delivered: int
    durable: dict[str, int]


class _Watch:
    """One group, looked at for a while. `each_turn`: not only each millisecond."""

    def __init__(self, group: Group, led: LedGroups, each_turn: bool) -> None:
        self.group = group
        self.each_turn = each_turn
        self.rows: deque[_Row] = deque(maxlen=ROWS_MAX)
        self._led = led
        self._next = group.next

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (lasts_s := loop.time() - began_s) < LASTS_S:
            self.look()
            await asyncio.sleep(0 if self.each_turn and lasts_s < EACH_TURN_S else SELDOM_S)

    def look(self) -> None:
        """Note how far it is, where that has moved."""
        group, last = self.group, self.rows[-1] if self.rows else None
        if last is None or last[1:] != (group.committed, group.delivered, group.durable):
            self.rows.append(_Row(self._led.clock.time_us(), group.committed, group.delivered, dict(group.durable)))
        if group.next > self._next and self._led.sequencer.groups.get(group.number) is group:
            self._next = group.next
            self._led.when_committed(group.number, group.next - 1, lambda _: self.look())

    def passed(self, offset: int) -> dict[str, Any]:
        """When `offset` was committed, might be delivered, and was durable in each member; None: that was not seen."""
        copies: dict[str, int] = {}
        for row in self.rows:
            for member, durable in row.durable.items():
                if durable > offset:
                    copies.setdefault(member, row.time_us)
        return {
            "committed_us": next((row.time_us for row in self.rows if row.committed > offset), None),
            "delivered_us": next((row.time_us for row in self.rows if row.delivered > offset), None),
            "copies": copies,
        }


class GroupTraces:
    """See the module's docstring: what brokers ask."""

    def __init__(self, led: LedGroups, shares: LedShares) -> None:
        self._led = led
        self._shares = shares
        self._watches: dict[int, tuple[_Watch, asyncio.Task[None]]] = {}
        self._numbers = count(1)
        # From when on the next watch may look each turn (the loop's time).
        self._each_turn_from_s = 0.0

    @property
    def watching(self) -> int:
        """How many groups are watched."""
        return len(self._watches)

    def trace(self, peer: BrokerPeer, group: int, offset: int, topic: bytes) -> dict[str, Any]:
        """How far the group is, compared with `offset`: who has it on disk, whether it is committed and delivered,
        which brokers hold subscriptions for the topic and whether they have been sent it, and where it is in shares."""
        state = self._led.sequencer.groups[group]
        copies = self._led.copies
        durable = {**(copies.durable(group) if copies is not None else {}), **state.durable}
        behind = {p.name: p.behind.get(group) for p in self._led.routing.peers_of(topic) if not p.gone}
        return {
            "coordinator": self._led.name,
            "epoch": state.epoch,
            "committed": state.committed > offset,
            "delivered": state.delivered > offset,
            "in_sync": list(state.in_sync),
            "copies": {name: below > offset for name, below in durable.items()},
            "brokers": {name: at is None or at > offset for name, at in behind.items()},
            "shares": self._shares.whereabouts(topic, group, offset),
        }

    def begin(self, peer: BrokerPeer, group: int) -> dict[str, int]:
        """Watch a group for LASTS_S: "watch", its number, and "now_us". Raises LimitError."""
        if len(self._watches) >= WATCHES_MAX:
            raise LimitError(f"{WATCHES_MAX} traces are under way at {self._led.name}: try again in {LASTS_S:.0f} s")
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        each_turn = began_s >= self._each_turn_from_s
        if each_turn:
            self._each_turn_from_s = math.inf
        watch = _Watch(self._led.sequencer.groups[group], self._led, each_turn)
        task = loop.create_task(watch.run())
        self._watches[number] = watch, task

        def ended(_: object) -> None:
            self._watches.pop(number, None)
            if each_turn:
                now_s = loop.time()
                self._each_turn_from_s = now_s + RESTS * min(now_s - began_s, EACH_TURN_S)

        task.add_done_callback(ended)
        return {"watch": number, "now_us": self._led.clock.time_us()}

    def end(self, peer: BrokerPeer, group: int, number: int, offset: int) -> dict[str, Any]:
        """Watch no more: when what is at `offset` was "committed_us", "delivered_us", and durable in each of "copies".
        Raises UsageError: it was over before."""
        watch, task = self._watches.get(number, (None, None))
        if watch is None or task is None or watch.group.number != group:
            raise UsageError(f"group {group} is not watched (any more): a trace lasts {LASTS_S:.0f} s")
        del self._watches[number]
        task.cancel()
        watch.look()
        return {"coordinator": self._led.name, "group": group, **watch.passed(offset)}

    async def close(self) -> None:
        """Watch nothing more."""
        tasks = [task for _, task in self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
