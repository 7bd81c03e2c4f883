"""What there is in the messages of a family: the structure of its model, found once for its samples.

The patterns of the messages; for each gap whether its values are numbers and in which format, which values come again,
which texts have patterns themselves, which are runs of an alphabet. How much of it pays: `building`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from .alphabets import ALPHABETS, BYTES
from .columns import RECORD_BYTES_MAX, find_columns, is_binary
from .model import RunField
from .number_formats import FIXED, PADDED, PLACES_MAX, PLAIN, POINTED, SHORTEST, parse_number
from .serialised import DEPTH_MAX, FIELDS_MAX
from .shapes import find_patterns
from .text_parts import cut_text, split_text
from .vocabulary import RUN_BYTES_MAX

EFFORT_MAX: Final = 4_000_000
"""Values that are compared to find what fields have to do with each other, in samples that anybody may have sent: there
are as many relations to try as the square of the fields. Some 2 s of a core."""

_LEAST: Final = 4
_SHARE: Final = 32
_RECORDS_MAX: Final = 6
_DATE_MARKS: Final = (b"-", b"/", b":", b"T")
_NUMBERS: Final = re.compile(rb"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|\d+(?=[TZ])|(?<=T)\d+")


class Shape(NamedTuple):
    """A pattern without its fields: pieces, or widths."""

    pieces: list[bytes]
    widths: list[int]

    def split(self, text: bytes) -> list[bytes] | None:
        """As `model.Pattern.split`."""
        if self.widths:
            return cut_text(text, self.widths) if len(text) == sum(self.widths) else None
        return split_text(text, self.pieces)


class Effort:
    """What is left of EFFORT_MAX: all models of one structure together. When it is used up no more is looked for:
    models have what was found, and only the leanest is still made."""

    def __init__(self) -> None:
        self.left = EFFORT_MAX

    def spend(self, values: int) -> None:
        """So many values are compared."""
        self.left -= values

    @property
    def used_up(self) -> bool:
        """Whether nothing more is to be looked for."""
        return self.left <= 0


class Node:
    """What is known of one field: its values with the number of the message of each, and its alternatives."""

    def __init__(self, id: int, values: list[bytes], messages: list[int], place: int) -> None:
        self.id = id
        self.place = place
        """The first field of its pattern: all of them have values in the same messages."""
        self.values = values
        self.messages = messages
        self.counted = Counter(values)
        self.format: tuple[int, int] | None = None
        self.repeated: list[tuple[bytes, int]] = []
        self.patterns: list[tuple[Shape, list[Node]]] = []
        self.run: RunField | None = None
        self.runs: list[bytes] = []
        """What of the values is such a run, each once."""
        self.numbers: dict[bytes, int] = {}

    def fitting(self, value: bytes) -> int:
        """The first pattern that `value` fits; -1: none."""
        for at, (shape, _) in enumerate(self.patterns):
            if shape.split(value) is not None:
                return at
        return -1


class MessageStructure:
    """The structure of a family's messages."""

    def __init__(self, samples: Sequence[bytes], topics: Sequence[bytes] = ()) -> None:
        """Of `samples`, none longer than a message of fields may be, and the topic of each, where they are known."""
        self.samples = list(samples)
        self.topics = list(topics) or [b""] * len(samples)
        self.effort = Effort()
        """Of all who look for what fields have to do with each other."""
        self.nodes: list[Node] = []
        self._beside: dict[tuple[int, int], list[bytes | None]] = {}
        self.root = self._node(self.samples, list(range(len(samples))), 0, 0)

    def beside(self, node: Node, id: int) -> Sequence[bytes | None]:
        """What a field is in the messages of the values of another one; None where it is not there."""
        other = self.nodes[id]
        if other.place == node.place:
            return other.values
        values = self._beside.get((node.place, id))
        if values is None:
            known = dict(zip(other.messages, other.values, strict=True))
            values = self._beside[node.place, id] = [known.get(message) for message in node.messages]
        return values

    def _node(
        self,
        values: list[bytes],
        messages: list[int],
        depth: int,
        place: int,
        padded: bool = False,
        format: tuple[int, int] | None = None,
    ) -> Node:
        """`place`: as of the node; `padded`: numbers of two digits are probably written with a zero before;
        `format`: it is known."""
        node = Node(len(self.nodes), values, messages, place)
        self.nodes.append(node)
        node.format = format or _format_of(node.counted, padded)
        if node.format is not None:
            form, places = node.format
            for value in node.counted:
                number = parse_number(value, form, places)
                if number is not None:
                    node.numbers[value] = number
        others = [value for value in values if value not in node.numbers]
        if others:
            self._texts(node, others, depth)
        return node

    def _texts(self, node: Node, others: list[bytes], depth: int) -> None:
        counted = Counter(others)
        node.repeated = [(value, count) for value, count in counted.most_common() if count > 1]
        if not depth:
            self._records(node, max(_LEAST, len(others) // _SHARE))
        if depth < DEPTH_MAX:
            self._patterns(node, counted, depth)
        rare = [value for value, count in counted.items() if count <= 2 and node.fitting(value) < 0]
        node.run = _run_of(rare)
        if node.run is not None:
            node.runs = [value for value in counted if node.run.fits(value) and node.fitting(value) < 0]

    def _patterns(self, node: Node, counted: Counter[bytes], depth: int) -> None:
        """Of values that came once, and of composed ones (times, addresses), whose numbers will be others."""
        texts = [value for value, count in counted.items() if count == 1 or len(_NUMBERS.findall(value)) > 1]
        texts = [value for value in texts if node.fitting(value) < 0]
        least = max(min(_LEAST, len(texts)), len(texts) // _SHARE)
        composed = any([len(_NUMBERS.findall(value)) > 1 for value in texts[:_LEAST]])
        if not texts or (len(texts) < _LEAST and not composed):
            return
        for found in find_patterns(texts, least):
            if len(self.nodes) + len(found.pieces) > FIELDS_MAX // 2:
                return
            if len(found.pieces) == 2 and not any(found.pieces):
                continue
            shape = Shape(found.pieces, [])
            columns, messages = self._columns(node, shape)
            if not messages:
                continue
            place = len(self.nodes)
            fields = [
                self._node(column, messages, depth + 1, place, _in_a_date(before, behind))
                for column, (before, behind) in zip(columns, pairwise(found.pieces), strict=True)
            ]
            node.patterns.append((shape, fields))

    def _records(self, node: Node, least: int) -> None:
        """Patterns of what is no text: records of bytes, by their length."""
        binary = [value for value in node.values if is_binary(value)]
        for length, count in Counter(map(len, binary)).most_common(_RECORDS_MAX):
            if count < least or length > RECORD_BYTES_MAX:
                continue
            found = find_columns([value for value in binary if len(value) == length])
            if not found:
                continue
            shape = Shape([], [column.width for column in found])
            columns, messages = self._columns(node, shape)
            if not messages:
                continue
            place = len(self.nodes)
            fields = [
                self._node(values, messages, 1, place, format=column.format)
                for values, column in zip(columns, found, strict=True)
            ]
            node.patterns.append((shape, fields))

    def _columns(self, node: Node, shape: Shape) -> tuple[list[list[bytes]], list[int]]:
        """What stands in the fields of a shape that a node has next, and in which messages."""
        parts: list[list[bytes]] = []
        messages: list[int] = []
        for value, message in zip(node.values, node.messages, strict=True):
            if value not in node.numbers and node.fitting(value) < 0:
                split = shape.split(value)
                if split is not None:
                    parts.append(split)
                    messages.append(message)
        return [list(column) for column in zip(*parts, strict=True)], messages


def _in_a_date(before: bytes, behind: bytes) -> bool:
    """Whether a gap between these pieces is one of a date or a time: `-/:T`, but for the colon of a JSON member."""
    return (before[-1:] in _DATE_MARKS and before[-2:] != b'":') or behind[:1] in _DATE_MARKS


def _format_of(counted: Counter[bytes], padded_too: bool) -> tuple[int, int] | None:
    """The format of most values, if they are numbers. `padded_too`: where both would do, it is the padded one."""
    total = counted.total()
    padded: Counter[int] = Counter()
    decimals: Counter[int] = Counter()
    for value, count in counted.items():
        if value.isdigit() and len(value) <= PLACES_MAX:
            padded[len(value)] += count
        _head, point, tail = value.partition(b".")
        if point and tail.isdigit() and len(tail) <= PLACES_MAX:
            decimals[len(tail)] += count
    formats = [(PADDED, places) for places, _ in padded.most_common(1)]
    formats.insert(len(formats) if padded_too and formats == [(PADDED, 2)] else 0, (PLAIN, 0))
    formats += [(FIXED, places) for places, _ in decimals.most_common(1)]
    if decimals:
        formats += [(form, max(decimals)) for form in (SHORTEST, POINTED)]
    best, most = None, total // 2
    for form, places in formats:
        fitting = sum([count for value, count in counted.items() if parse_number(value, form, places) is not None])
        if fitting > most:
            best, most = (form, places), fitting
    return best


def _run_of(values: Sequence[bytes]) -> RunField | None:
    """The alphabet and lengths of most of `values`."""
    if len(values) < _LEAST:
        return None
    wanted = [value for value in values if 0 < len(value) <= RUN_BYTES_MAX]
    for alphabet in range(BYTES):
        fitting = [value for value in wanted if not value.translate(None, ALPHABETS[alphabet])]
        if 5 * len(fitting) >= 4 * len(values):
            lengths = [len(value) for value in fitting]
            return RunField(alphabet, min(lengths), max(lengths))
    return None
