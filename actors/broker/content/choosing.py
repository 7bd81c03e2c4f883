"""What a subscriber with conditions gets of a block: the publications for which they hold, as a block of its own.

Where subscriptions of one subscriber overlap, those count that hold for a publication: the block that is made names a
topic once a grant. From there on it is delivered as every block is. Its `last` is the original's, so a cursor passes
what was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lexicast.cluster.blocks import QOS_MASK, RETAIN, Run
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.nodes import Name
from lexicast.cluster.selection import Picker

from ..encoding import BlockView, Encoder, Grant, Grants
from ..granted_filters import join_grants

JOINED_KEPT: Final = 4_096
READERS_KEPT: Final = 256

# A record by number, and the subscriptions that it is granted by.
Pick = tuple[int, tuple[Grant, ...]]


class Chosen(NamedTuple):
    """A part of a block, and how its topics are granted."""

    view: BlockView
    grants: Grants


class BlockChoice:
    """See the module's docstring. Of one block: what it holds is looked at once, whoever asks."""

    __slots__ = ("_encoder", "_lazy_picker", "_made", "_raw", "_records", "view")

    def __init__(self, view: BlockView, encoder: Encoder) -> None:
        self.view = view
        self._encoder = encoder
        self._lazy_picker: Picker | None = None
        self._raw: list[bytes | None] | None = None
        self._records: dict[FieldReader, list[ContentRecord]] = {}
        self._made: dict[Grants, Chosen | None] = {}

    @property
    def _picker(self) -> Picker:
        # Of most blocks of the past nothing is picked.
        if self._lazy_picker is None:
            self._lazy_picker = Picker(self.view.block)
        return self._lazy_picker

    @property
    def runs(self) -> Sequence[Run]:
        """The run of each record."""
        return self._picker.runs

    @property
    def payloads(self) -> list[bytes | None]:
        """The records' payloads as conditions ask them; None for one that cannot be decompressed here."""
        if self._raw is None:
            self._raw = self.view.asked(self._encoder.recoder)
        return self._raw

    def records(self, reader: FieldReader) -> list[ContentRecord]:
        """The records as conditions ask of them, whose names `reader` knows. A payload that cannot be decompressed has
        no fields."""
        found = self._records.get(reader)
        if found is None:
            found = self._records[reader] = []
            block, raw = self.view.block, self.payloads
            topics, time_us = block.meta.topics, block.time_us
            for run in block.meta.runs:
                topic, qos, retain, properties = topics[run.topic], run.flags & QOS_MASK, run.flags & RETAIN > 0, run[5]
                found += [
                    ContentRecord(topic, payload or b"", reader, time_us, qos, retain, properties)
                    for payload in raw[len(found) : len(found) + run.count]
                ]
        return found

    def of_grants(self, grants: Grants) -> Chosen | None:
        """What a subscriber of these grants gets; None: nothing. The same for all who have the same."""
        try:
            return self._made[grants]
        except KeyError:
            found = self._made[grants] = self._of_grants(grants)
            return found

    def _of_grants(self, grants: Grants) -> Chosen | None:
        parts_of = [() if grant is None else grant.any_of or (grant,) for grant in grants]
        names = frozenset([n for parts in parts_of for p in parts if p.where is not None for n in p.where.names])
        reader = reader_of(names)
        picks, records, end = list[Pick](), self.records(reader), 0
        for run in self.view.block.meta.runs:
            at, end = end, end + run.count
            parts = parts_of[run.topic]
            if len(parts) == 1 and parts[0].where is not None:
                matches = parts[0].where.matches
                picks += [(number, parts) for number in range(at, end) if matches(records[number])]
            elif parts:
                for number in range(at, end):
                    record = records[number]
                    holding = tuple([part for part in parts if part.where is None or part.where.matches(record)])
                    if holding:
                        picks.append((number, holding))
        return self.of_picks(picks) if picks else None

    def of_picks(self, picks: Iterable[Pick]) -> Chosen:
        """These records, in ascending order, one or more."""
        topics, grants = list[bytes](), list[Grant]()
        known: dict[tuple[int, Grant], int] = {}
        records, numbers = list[int](), list[int]()
        names, runs = self.view.block.meta.topics, self._picker.runs
        # Of the record before: mostly the same.
        topic, number = -1, -1
        granting: tuple[Grant, ...] = ()
        for record, parts in picks:
            if parts is not granting or runs[record].topic != topic:
                topic, granting = runs[record].topic, parts
                grant = granted_by(parts)
                number = known.setdefault((topic, grant), len(topics))
                if number == len(topics):
                    topics.append(names[topic])
                    grants.append(grant)
            records.append(record)
            numbers.append(number)
        block = self._picker.pick(records, tuple(topics), numbers)
        payloads = self.payloads
        raw = None if self.view.is_much else [payloads[record] for record in records]
        return Chosen(BlockView(block, self.view.now_us, raw), tuple(grants))


@lru_cache(maxsize=JOINED_KEPT)
def granted_by(parts: tuple[Grant, ...]) -> Grant:
    """Subscriptions whose conditions hold, put together: nothing is left to be looked at."""
    joined = join_grants([part._replace(where=None) for part in parts])
    assert joined is not None
    return joined


@lru_cache(maxsize=READERS_KEPT)
def reader_of(names: frozenset[Name]) -> FieldReader:
    """What reads the fields that these names need; to make one takes the library a moment."""
    return FieldReader(names)


def choice_of(view: BlockView, encoder: Encoder) -> BlockChoice:
    """The block's; made once."""
    choice = view.choice
    if not isinstance(choice, BlockChoice):
        choice = view.choice = BlockChoice(view, encoder)
    return choice


def chosen(view: BlockView, grants: Grants, encoder: Encoder) -> Chosen | None:
    """What a subscriber of these grants gets of a block: the block, where no condition is among them."""
    if not any([grant is not None and grant.chooses for grant in grants]):
        return Chosen(view, grants)
    return choice_of(view, encoder).of_grants(grants)
