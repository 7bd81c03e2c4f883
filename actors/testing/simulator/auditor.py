"""The auditor: sees what is stored, seen and acknowledged, and says at once what a guarantee does not allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise

from lexicast.cluster.blocks import PUBLICATIONS, QOS_MASK, RETAIN, Block
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.topics.names import matches

from .memory_store import MemoryStore
from .scene import GROUPS
from .transcript import Transcript


class Violation(AssertionError):
    """A guarantee that did not hold."""


class Auditor:
    """See the module's docstring. `broken`: what it has found, the first first."""

    def __init__(
        self, stores: Mapping[str, MemoryStore], state: Callable[[int], GroupState], transcript: Transcript
    ) -> None:
        """`state(group)`: what the coordination server has."""
        self._stores = stores
        self._state = state
        self._transcript = transcript
        self.broken: list[str] = []
        # Where each payload stands, and what stands where.
        self.places: dict[bytes, tuple[int, int]] = {}
        self._records: dict[tuple[int, int], bytes] = {}
        self.acknowledged: set[bytes] = set()
        # What may be stored twice: sent again at QoS 1 over another connection.
        self.may_double: set[bytes] = set()
        self._doubled: set[bytes] = set()
        # When clients first sent what they publish.
        self._sent_s: dict[bytes, float] = {}
        # Of what is stored at QoS 1 and 2: the topic.
        self._kept: dict[bytes, bytes] = {}
        self._times: dict[int, dict[int, int]] = {}
        # Told of each promise (name, group): for mishaps of those moments.
        self.when_promised: list[Callable[[str, int], None]] = []
        self._promises: dict[tuple[str, int], int] = {}
        for store in stores.values():
            store.when_applied = self.applied

    def found(self, what: str) -> None:
        """A guarantee does not hold."""
        self._transcript.say("auditor", f"VIOLATION {what}")
        self.broken.append(what)

    def applied(self, block: Block) -> None:
        """A block counts, as one of its copies has it."""
        before = self._times.setdefault(block.group, {}).setdefault(block.first, block.time_us)
        if before != block.time_us:
            self.found(f"alike: {block.group}:{block.first} has the times {before} and {block.time_us}")
        if block.kind == PUBLICATIONS:
            for record in block.records():
                place = (block.group, record.offset)
                if record.flags & QOS_MASK:
                    self._kept[record.payload] = record.topic
                if self.places.setdefault(record.payload, place) == place:
                    continue
                if record.payload in self.may_double:
                    self._doubled.add(record.payload)
                else:
                    self.found(f"once: {record.payload!r} stands at {place} and at {self.places[record.payload]}")

    def promised(self, name: str, group: int, epoch: int) -> None:
        """A member has promised to take nothing older than this epoch."""
        before = self._promises.setdefault((name, group), epoch)
        if epoch < before:
            self.found(f"fenced: {name} promises epoch {epoch} of group {group}, but has promised {before}")
        self._promises[name, group] = max(epoch, before)
        for told in list(self.when_promised):
            told(name, group)

    def taken(self, name: str, block: Block) -> None:
        """A member has made a block durable: that is a promise too."""
        key = (name, block.group)
        self._promises[key] = max(block.epoch, self._promises.get(key, 0))

    def is_committed(self, group: int, offset: int, payload: bytes) -> bool:
        """Whether every member of the group's in-sync set has this record there."""
        return all(self._stores[name].has(group, offset, payload) for name in self._state(group).in_sync)

    def delivered(self, group: int, offset: int, flags: int, payload: bytes) -> None:
        """A subscriber got a record."""
        if flags & QOS_MASK and not self.is_committed(group, offset, payload):
            self.found(f"committed: {payload!r} was seen at {group}:{offset} before every member in sync had it")
        if self._records.setdefault((group, offset), payload) != payload:
            self.found(f"order: {group}:{offset} is {payload!r} and {self._records[group, offset]!r}")

    # -- what sessions see

    def sent(self, payload: bytes) -> None:
        """A client publishes this for the first time."""
        self._sent_s.setdefault(payload, self._transcript.now_s())

    def seen_by_session(self, payload: bytes) -> None:
        """A client has got this at QoS 1 or 2."""
        members = [self._state(group).in_sync for group in range(GROUPS)]
        if not any(all(self._stores[name].holds(group, payload) for name in members[group]) for group in range(GROUPS)):
            self.found(f"committed: {payload!r} was seen before every member in sync had it")

    def missing(
        self, topic_filter: bytes, since_s: float, seen: Collection[bytes], wants: Callable[[bytes, bytes], bool]
    ) -> list[bytes]:
        """What was first sent after `since_s` at QoS 1 or 2, is stored, matches, is wanted (topic, payload), and was
        not seen."""
        return [
            payload
            for payload, topic in self._kept.items()
            if self._sent_s.get(payload, 0.0) > since_s
            and payload not in seen
            and matches(topic_filter, topic)
            and wants(topic, payload)
        ]

    def retained(self) -> dict[bytes, bytes]:
        """What is retained of each topic, by what the logs of the groups' leaders hold."""
        found: dict[bytes, bytes] = {}
        for name, store in self._stores.items():
            for group, _, topic, flags, payload in store.records():
                if flags & RETAIN and self._state(group).leader == name:
                    found[topic] = payload
        return {topic: payload for topic, payload in found.items() if payload}

    def check_order(self, who: str, seen: Iterable[bytes]) -> None:
        """What a session has seen, in that order, for the first time."""
        last: dict[int, int] = {}
        for payload in seen:
            if payload in self.places and payload not in self._doubled:
                group, offset = self.places[payload]
                if offset < last.get(group, -1):
                    self.found(f"order: {who} sees {payload!r} at {group}:{offset} after {group}:{last[group]}")
                last[group] = offset

    def check_times(self) -> None:
        """Within a group times never go back, whatever the clocks of its leaders did."""
        for group, times in self._times.items():
            for before, after in pairwise(sorted(times.items())):
                if after[1] < before[1]:
                    self.found(f"time: {group}:{after[0]} is older than {group}:{before[0]}")

    def lost(self) -> list[bytes]:
        """What was acknowledged and is not stored."""
        return sorted(self.acknowledged - self.places.keys())
