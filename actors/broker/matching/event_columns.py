"""What conditions ask of the publications that a broker takes, told beside them: matchers read no payloads.

Matchers say which names the conditions of the whole cluster ask for, by topic filter. Of an entry whose topics somebody
asks about, the broker reads these fields and sends them to the coordinator in front of it; nobody keeps them.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from lexicast.cluster.blocks import PUBLICATIONS, QOS_MASK, RETAIN, U32, Block, Meta, unpack_meta
from lexicast.cluster.content.boxes import ColumnKind, column_value
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.evaluation import Getter, getter
from lexicast.cluster.content.event_rows import NAMES_MAX, pack_rows
from lexicast.cluster.content.extraction import column_parts, columns_of
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.parser import parse_name
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.hpartition.cell_report import SAMPLE_MAX
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.protocol.messages import WireEntry
from lexicast.cluster.topics.names import TopicTrie

from ..content.choosing import reader_of
from ..encoding import BlockView, Encoder
from ..pipelines.stored_compression import StoredCompression

# Of longer entries nothing is told: whoever wants them looks at them.
RECORDS_MAX: Final = 4_096
TOPICS_KEPT_MAX: Final = 200_000
# One of so many records is kept as a point.
SEEN_EACH: Final = 16
# So many points are looked up at once; of fewer the calls cost more than the values.
NUMPY_FROM: Final = 32

# (version of the cells' map, candidates, the records' numbers, rows)
Part = tuple[int, tuple[str, ...], bytes, bytes]


class _Names:
    """What is asked of one filter's publications, by matcher."""

    __slots__ = ("by_matcher",)

    def __init__(self) -> None:
        self.by_matcher: dict[str, tuple[str, ...]] = {}


class EventColumns:
    """See the module's docstring."""

    def __init__(self, encoder: Encoder, stored_compression: StoredCompression) -> None:
        self._encoder = encoder
        self._stored_compression = stored_compression
        self._matchers: dict[str, None] = {}
        self._filters: dict[bytes, _Names] = {}
        self._trie: TopicTrie[_Names, None] = TopicTrie()
        self._of_topic: dict[bytes, frozenset[str]] = {}
        self.map = LiveMap()
        # Of each of its columns what finds the value.
        self._dimensions: list[tuple[Getter, ColumnKind]] = []
        self._plans: dict[tuple[bytes, ...], _Plan | None] = {}
        self.told_records = 0
        self._see_next = 0
        # Of what has been told: some, and how many lay in each cell; until somebody takes them.
        self.seen: deque[dict[str, float]] = deque(maxlen=SAMPLE_MAX)
        self.asked_cells: Counter[CellId] = Counter()

    def __bool__(self) -> bool:
        return bool(self._filters)

    # -- matchers say

    def asked(self, matcher: str, names: Mapping[bytes, Sequence[str]]) -> None:
        """What conditions ask of these filters' publications by now; nothing any more where that is empty. Raises
        PeerError, UsageError: no names."""
        self._matchers[matcher] = None
        for topic_filter, some in names.items():
            for name in some:
                parse_name(name)
            self._set(topic_filter, matcher, tuple(some))
        self._forget()

    def gone(self, matcher: str) -> None:
        """A matcher's link has ended."""
        self._matchers.pop(matcher, None)
        for topic_filter in list(self._filters):
            self._set(topic_filter, matcher, ())
        self._forget()

    def _forget(self) -> None:
        self._of_topic.clear()
        self._plans.clear()

    def _set(self, topic_filter: bytes, matcher: str, names: tuple[str, ...]) -> None:
        of_filter = self._filters.get(topic_filter)
        if names:
            if of_filter is None:
                of_filter = self._filters[topic_filter] = _Names()
                self._trie.insert(topic_filter, of_filter, None)
            of_filter.by_matcher[matcher] = names
        elif of_filter is not None:
            of_filter.by_matcher.pop(matcher, None)
            if not of_filter.by_matcher:
                del self._filters[topic_filter]
                self._trie.remove(topic_filter, of_filter)

    def _names_of(self, topic: bytes) -> frozenset[str]:
        found = self._of_topic.get(topic)
        if found is None:
            if len(self._of_topic) >= TOPICS_KEPT_MAX:
                self._of_topic.clear()
            some = [names for of_filter, _ in self._trie.match(topic) for names in of_filter.by_matcher.values()]
            found = self._of_topic[topic] = frozenset[str]().union(*some)
        return found

    def follow(self, cells: LiveMap) -> None:
        """Publications lie in these cells from now on."""
        self.map = cells
        parts = map(column_parts, cells.columns)
        self._dimensions = [(getter(name), kind) for name, kind in parts]
        self._plans.clear()

    # -- entries go

    def of_entries(self, wires: Iterable[WireEntry]) -> dict[int, list[Part]]:
        """What is told of these entries, by number; of most nothing."""
        if not self._filters or not self._matchers:
            return {}
        found = {}
        for number, wire in enumerate(wires):
            try:
                if parts := self._of_entry(wire):
                    found[number] = parts
            except LexicastError:  # a Python client's entry that is none: the coordinator refuses it
                continue
        return found

    def _of_entry(self, wire: WireEntry) -> list[Part]:
        group, meta, lengths, body = wire
        count = len(lengths) // U32
        if not 0 < count <= RECORDS_MAX:
            return []
        parsed = unpack_meta(meta)
        plan = self._plan(parsed.topics)
        if plan is None:
            return []
        block = Block(group, 0, 0, count - 1, 0, PUBLICATIONS, meta, lengths, body, parsed)
        raw = self._stored_compression.raw_kept(block) if parsed.dictionaries else None
        payloads = BlockView(block, 0, raw).asked(self._encoder.recoder)
        numbers, records = plan.records(parsed, payloads)
        if not numbers:
            return []
        self.told_records += len(numbers)
        if self.told_records >= self._see_next:
            self._see_next = self.told_records + SEEN_EACH
            self.seen.append(plan.point(records[0]))
        version, names = self.map.version, plan.names
        if self.map.cells is None:
            return [(version, tuple(self._matchers), array("I", numbers).tobytes(), pack_rows(records, names))]
        return [
            (version, candidates, array("I", [numbers[i] for i in some]).tobytes(), pack_rows(chosen, names))
            for candidates, some in self._by_candidates(records).items()
            for chosen in ([records[i] for i in some],)
        ]

    def _by_candidates(self, records: Sequence[ContentRecord]) -> dict[tuple[str, ...], list[int]]:
        """The records, by number, by who may be asked about them."""
        found: dict[tuple[str, ...], list[int]] = {}
        for number, point in enumerate(self._points(records)):
            cells, candidates = self.map.candidates(point)
            self.asked_cells.update(cells)
            found.setdefault(candidates, []).append(number)
        return found

    def _points(self, records: Sequence[ContentRecord]) -> list[list[float]]:
        if len(records) >= NUMPY_FROM:
            points: list[list[float]] = columns_of(records, self.map.columns).tolist()
            return points
        return [
            [column_value(get(record.fields(), record), kind) for get, kind in self._dimensions] for record in records
        ]

    def _plan(self, topics: tuple[bytes, ...]) -> _Plan | None:
        """What is told of entries of these topics; None: nothing."""
        try:
            return self._plans[topics]
        except KeyError:
            of_topics = [self._names_of(topic) for topic in topics]
            plan = None
            if any(of_topics):
                names = tuple(sorted(frozenset[str]().union(*of_topics))[:NAMES_MAX])
                # Also the cells' dimensions, whoever asks for them: where a condition lies nobody else need know it.
                read = frozenset([*map(parse_name, names), *[column_parts(each)[0] for each in self.map.columns]])
                plan = _Plan(names, reader_of(read), list(map(bool, of_topics)))
            if len(self._plans) >= TOPICS_KEPT_MAX:
                self._plans.clear()
            self._plans[topics] = plan
            return plan


class _Plan:
    """What is told of entries with the same topics. `names`: of values, as texts; `reader`: reads them and more."""

    __slots__ = ("_getters", "_reader", "_wanted", "names")

    def __init__(self, names: tuple[str, ...], reader: FieldReader, wanted: list[bool]) -> None:
        self.names = names
        self._reader = reader
        self._wanted = wanted
        self._getters = [(name, _getter(name)) for name in names]

    def records(self, meta: Meta, payloads: Sequence[bytes | None]) -> tuple[list[int], list[ContentRecord]]:
        """The records of wanted topics and their numbers. Of what cannot be read here nothing is told: whoever is to
        have it by its topic gets it."""
        numbers, records, end = list[int](), list[ContentRecord](), 0
        reader, topics = self._reader, meta.topics
        for run in meta.runs:
            at, end = end, end + run.count
            if not self._wanted[run.topic]:
                continue
            topic, qos, retain, properties = topics[run.topic], run.flags & QOS_MASK, run.flags & RETAIN > 0, run[5]
            for number in range(at, end):
                payload = payloads[number]
                if payload is not None:
                    numbers.append(number)
                    records.append(ContentRecord(topic, payload, reader, 0, qos, retain, properties))
        return numbers, records

    def point(self, record: ContentRecord) -> dict[str, float]:
        """Its values in all columns that it has any in."""
        fields, found = record.fields(), dict[str, float]()
        for name, get in self._getters:
            value = get(fields, record)
            for kind in ColumnKind:
                if (at := column_value(value, kind)) == at:  # no NaN
                    found[name + kind.value] = at
        return found


@lru_cache(4_096)
def _getter(name: str) -> Getter:
    return getter(parse_name(name))
