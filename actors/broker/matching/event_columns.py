"""What conditions ask of the publications that a broker takes, told beside them: matchers read no payloads.

Matchers say which names the conditions of the whole cluster ask for, by topic filter. Of an entry whose topics somebody
asks about, the broker reads these fields and sends them to the coordinator in front of it; nobody keeps them.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from lexicast.cluster.blocks import PUBLICATIONS, U32, Block, unpack_meta
from lexicast.cluster.content.boxes import ColumnKind, column_value
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.evaluation import Getter, getter
from lexicast.cluster.content.event_rows import NAMES_MAX, pack_rows
from lexicast.cluster.content.extraction import column_parts, columns_of
from lexicast.cluster.content.nodes import Name
from lexicast.cluster.content.parser import parse_name
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.hpartition.cell_report import SAMPLE_MAX
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.protocol.messages import WireEntry
from lexicast.cluster.topics.names import TopicTrie

from ..content.choosing import BlockChoice, reader_of
from ..encoding import BlockView, Encoder
from ..pipelines.stored_compression import StoredCompression

# Of longer entries nothing is told: whoever wants them looks at them.
RECORDS_MAX: Final = 4_096
TOPICS_KEPT_MAX: Final = 200_000

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
        self._dimensions: tuple[Name, ...] = ()
        self.told_records = 0
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
        self._of_topic.clear()

    def gone(self, matcher: str) -> None:
        """A matcher's link has ended."""
        self._matchers.pop(matcher, None)
        for topic_filter in list(self._filters):
            self._set(topic_filter, matcher, ())
        self._of_topic.clear()

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
        self._dimensions = tuple([column_parts(column)[0] for column in cells.columns])

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
        of_topics = [self._names_of(topic) for topic in parsed.topics]
        if not any(of_topics):
            return []
        names = tuple(sorted(frozenset[str]().union(*of_topics))[:NAMES_MAX])
        block = Block(group, 0, 0, count - 1, 0, PUBLICATIONS, meta, lengths, body, parsed)
        raw: Any = self._stored_compression.raw_kept(block) if parsed.dictionaries else None
        choice = BlockChoice(BlockView(block, 0, raw), self._encoder)
        # Also the cells' dimensions, whoever asks for them: where a condition lies nobody else needs to know of it.
        records = choice.records(reader_of(frozenset([*map(parse_name, names), *self._dimensions])))
        payloads = choice.payloads
        # Of what cannot be read here nothing is told: whoever is to have it by its topic gets it.
        numbers = [n for n, run in enumerate(choice.runs) if of_topics[run.topic] and payloads[n] is not None]
        if not numbers:
            return []
        self.told_records += len(numbers)
        self._see(records[numbers[0]], names)
        return [
            (
                self.map.version,
                candidates,
                array("I", some).tobytes(),
                pack_rows([records[number] for number in some], names),
            )
            for candidates, some in self._by_candidates(records, numbers).items()
        ]

    def _by_candidates(
        self, records: Sequence[ContentRecord], numbers: Sequence[int]
    ) -> dict[tuple[str, ...], list[int]]:
        """The records by who may be asked about them."""
        if self.map.cells is None:
            return {tuple(self._matchers): [*numbers]}
        found: dict[tuple[str, ...], list[int]] = {}
        points = columns_of([records[number] for number in numbers], self.map.columns).tolist()
        for number, point in zip(numbers, points, strict=True):
            cells, candidates = self.map.candidates(point)
            self.asked_cells.update(cells)
            found.setdefault(candidates, []).append(number)
        return found

    def _see(self, record: ContentRecord, names: Iterable[str]) -> None:
        """One of an entry's records is kept for a while, as a point."""
        fields, point = record.fields(), dict[str, float]()
        for name in names:
            value = _getter(name)(fields, record)
            for kind in ColumnKind:
                if (at := column_value(value, kind)) == at:  # no NaN
                    point[name + kind.value] = at
        self.seen.append(point)


@lru_cache(4_096)
def _getter(name: str) -> Getter:
    return getter(parse_name(name))
