"""The conditions of all brokers' subscriptions that one matcher holds, and which brokers want which publications.

Soft state: a broker tells everything when its link begins, and what it had told is forgotten when the link ends. A
broker's conditions are *known up to* the number that it sent last, and by a version of the cells' map (`MapVersions`);
coordinators compare both with what they have been told by the broker, so a matcher may lack whatever it likes: what it
cannot vouch for is looked at by the broker itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.event_rows import NAMES_MAX, EventRows
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.topics.names import TopicTrie, is_wildcard

from ..broker.content.predicate_table import PredicateTable

TOPICS_KEPT_MAX: Final = 200_000
# A map's neighbours are right too: see `cluster.hpartition.cell_map`.
VERSIONS_APART_MAX: Final = 1

Key = tuple[bytes, str]
# By broker: its incarnation, up to which number its conditions are known, and which of the records it wants: a bit
# each, the first record's the lowest of the first byte.
Vouched = dict[str, tuple[int, int, bytes]]


@dataclass(slots=True, eq=False)
class KnownBroker:
    """What one broker has told on one link; `keys`: its filters with their conditions."""

    name: str
    incarnation: int
    version: int = 0
    number: int = -1
    keys: set[Key] = field(default_factory=set)


class _Filter:
    """One topic filter: the brokers that have it, and what their conditions ask."""

    __slots__ = ("brokers", "names", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.brokers: Counter[KnownBroker] = Counter()
        self.names: Counter[str] = Counter()


class _Asked:
    """Publications, for `PredicateTable`."""

    def __init__(self, records: Sequence[ContentRecord]) -> None:
        self._records = records

    def records(self, reader: FieldReader) -> Sequence[ContentRecord]:
        """All of them; their fields are read already."""
        return self._records


class _Look:
    """Publications that were asked about together. `bits`: of each broker that is vouched for those that it wants."""

    __slots__ = ("_filters", "_rows", "bits")

    def __init__(
        self, rows: EventRows, topics: Mapping[bytes, frozenset[_Filter]], vouched: Iterable[KnownBroker]
    ) -> None:
        self._rows = rows
        self._filters = [topics[topic] for topic in rows.topics]
        self.bits = dict.fromkeys(vouched, 0)
        for number, record in enumerate(rows.records):
            if record is None:
                self._may_want(number)

    def _may_want(self, number: int) -> None:
        """Nothing is known of a record: whoever has a filter for it may want it."""
        for of_filter in self._filters[number]:
            for broker in of_filter.brokers.keys() & self.bits.keys():
                self.bits[broker] |= 1 << number

    def told(self) -> list[tuple[int, ContentRecord]]:
        """The records of which something is known, with their numbers."""
        return [(number, record) for number, record in enumerate(self._rows.records) if record is not None]

    def holds(self, number: int, wanting: Mapping[KnownBroker, set[_Filter]]) -> None:
        """A condition holds of a record; `wanting`: who has it, for which filters."""
        bits, bit, filters = self.bits, 1 << number, self._filters[number]
        for broker, of in wanting.items():
            if broker in bits and not bits[broker] & bit and not filters.isdisjoint(of):
                bits[broker] |= bit

    def packed(self) -> Vouched:
        """`bits` as coordinators get them."""
        size = (len(self._rows.records) + 7) // 8
        return {
            broker.name: (broker.incarnation, broker.number, found.to_bytes(size, "little"))
            for broker, found in self.bits.items()
        }


class BrokersConditions:
    """See the module's docstring. `changed`: filters whose names have changed since somebody emptied it."""

    def __init__(self) -> None:
        self.table = PredicateTable()
        self.brokers: dict[str, KnownBroker] = {}
        self.changed: set[bytes] = set()
        self.asked_records = 0
        self._filters: dict[bytes, _Filter] = {}
        self._trie: TopicTrie[_Filter, None] = TopicTrie()
        self._of_topic: dict[bytes, frozenset[_Filter]] = {}
        # By a condition's number: who wants it, of which filters.
        self._wanting: dict[int, dict[KnownBroker, set[_Filter]]] = {}
        # Those whose links have ended, as far as they are not forgotten.
        self._leaving: list[KnownBroker] = []
        self._predicates: dict[str, Predicate] = {}

    # -- brokers tell

    def begin(self, broker: str, incarnation: int) -> None:
        """A broker's link begins."""
        self.forget(broker)
        self.brokers[broker] = KnownBroker(broker, incarnation)

    def forget(self, broker: str) -> None:
        """A broker's link has ended: nobody vouches for it any more, and what it had told goes by `step`."""
        known = self.brokers.pop(broker, None)
        if known is not None and known.keys:
            self._leaving.append(known)

    def step(self, most: int) -> bool:
        """Forget at most so many conditions of brokers whose links have ended; whether there are more."""
        while self._leaving and most > 0:
            keys = self._leaving[-1].keys
            while keys and most > 0:
                self._end(self._leaving[-1], keys.pop())
                most -= 1
            if not keys:
                self._leaving.pop()
        return bool(self._leaving)

    def told(self, broker: str, version: int, number: int, changes: Iterable[tuple[bool, bytes, str]]) -> None:
        """What begins and ends at a broker. Raises PeerError: a condition that is none; something ends that has not
        begun; more than a matcher holds."""
        known = self.brokers[broker]
        for begins, topic_filter, where in changes:
            key = topic_filter, where
            if begins is (key in known.keys):
                raise PeerError(f"{broker}: a condition that {'has begun already' if begins else 'has not begun'}")
            if begins:
                self._begin(known, key)
                known.keys.add(key)
            else:
                known.keys.remove(key)
                self._end(known, key)
        known.version, known.number = version, number

    def _begin(self, broker: KnownBroker, key: Key) -> None:
        name, where = key
        predicate = self._predicates.get(where)
        try:
            if predicate is None:
                predicate = Predicate.of_canonical(where)
                self.table.check(predicate)
                self._predicates[where] = predicate
        except LexicastError as error:
            raise PeerError(f"a condition of {broker.name}: {error}") from None
        self.table.hold(predicate)
        of_filter = self._filters.get(name)
        if of_filter is None:
            of_filter = self._filters[name] = _Filter(name)
            self._trie.insert(name, of_filter, None)
            self._forget_topics(name)
        of_filter.brokers[broker] += 1
        for asked in predicate.names:
            self._count_name(of_filter, str(asked), 1)
        self._wanting.setdefault(self.table.number(predicate), {}).setdefault(broker, set()).add(of_filter)

    def _end(self, broker: KnownBroker, key: Key) -> None:
        name, where = key
        predicate, of_filter = self._predicates[where], self._filters[name]
        number = self.table.number(predicate)
        wanting = self._wanting[number]
        wanting[broker].discard(of_filter)
        if not wanting[broker]:
            del wanting[broker]
        if not wanting:
            del self._wanting[number], self._predicates[where]
        self.table.release(predicate)
        for asked in predicate.names:
            self._count_name(of_filter, str(asked), -1)
        of_filter.brokers[broker] -= 1
        if not of_filter.brokers[broker]:
            del of_filter.brokers[broker]
        if not of_filter.brokers:
            del self._filters[name]
            self._trie.remove(name, of_filter)
            self._forget_topics(name)
            self.changed.add(name)

    def _count_name(self, of_filter: _Filter, name: str, change: int) -> None:
        of_filter.names[name] += change
        if not of_filter.names[name]:
            del of_filter.names[name]
            self.changed.add(of_filter.text)
        elif of_filter.names[name] == change == 1:
            self.changed.add(of_filter.text)

    def _forget_topics(self, changed: bytes) -> None:
        if is_wildcard(changed):
            self._of_topic.clear()
        else:
            self._of_topic.pop(changed, None)

    # -- what is asked of topics' publications

    def names(self, filters: Iterable[bytes]) -> dict[bytes, list[str]]:
        """What conditions ask of publications, by filter; of those that nobody has (any more) nothing."""
        return {name: self._names(self._filters.get(name)) for name in filters}

    def all_names(self) -> dict[bytes, list[str]]:
        """Of all filters."""
        return self.names(self._filters)

    @staticmethod
    def _names(of_filter: _Filter | None) -> list[str]:
        return [] if of_filter is None else sorted(of_filter.names)[:NAMES_MAX]

    # -- asked

    def wanted(self, asks: Sequence[tuple[int, EventRows]]) -> list[Vouched]:
        """Of each of these (version of the map by which it was asked, publications): what this matcher can vouch for.
        All are looked up at once: one by one the index would be asked for one publication at a time."""
        looks = [self._look(version, rows) for version, rows in asks]
        told = [(look, number, record) for look in looks if look.bits for number, record in look.told()]
        if told:
            asked = _Asked([record for _, _, record in told])
            found = self.table.holding(asked, range(len(told)), self.table.residual_predicates)
            for at, conditions in found.items():
                look, number, _ = told[at]
                for condition in conditions:
                    look.holds(number, self._wanting[condition])
        return [look.packed() for look in looks]

    def _look(self, version: int, rows: EventRows) -> _Look:
        self.asked_records += len(rows.records)
        topics = {topic: self._of(topic) for topic in set(rows.topics)}
        doubtful = self._doubtful(rows.names, {each for some in topics.values() for each in some})
        vouched = [
            known
            for known in self.brokers.values()
            if known.number >= 0 and known not in doubtful and abs(known.version - version) <= VERSIONS_APART_MAX
        ]
        return _Look(rows, topics, vouched)

    def _of(self, topic: bytes) -> frozenset[_Filter]:
        found = self._of_topic.get(topic)
        if found is None:
            if len(self._of_topic) >= TOPICS_KEPT_MAX:
                self._of_topic.clear()
            found = self._of_topic[topic] = frozenset([of_filter for of_filter, _ in self._trie.match(topic)])
        return found

    @staticmethod
    def _doubtful(names: frozenset[str], filters: Iterable[_Filter]) -> set[KnownBroker]:
        """Brokers whose conditions ask something of these publications that was not told."""
        found: set[KnownBroker] = set()
        for of_filter in filters:
            if not of_filter.names.keys() <= names:
                found.update(of_filter.brokers)
        return found

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "brokers": len(self.brokers),
            "conditions": len(self.table),
            "filters": len(self._filters),
            "asked_records": self.asked_records,
        }
