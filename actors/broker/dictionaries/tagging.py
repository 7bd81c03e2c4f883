"""A block's payloads as dictionary-aware links get them, in one of several forms, and what dictionaries would save.

The first form uses the family's newest dictionary, or the one that the publisher used. In the others some of these are
replaced (`Instead`), for links that do not have them; so brokers recode at the edge (thesis section 6.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW, Block, Run
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.topics.names import DICTIONARY_PREFIX
from lexicast.compression.link_dictionaries import NONE, FamilySavings
from lexicast.compression.wire import AliasTable, Encoded, Recoder

from .keeper import IsOptedOut, NewestDictionary

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

# Dictionary ids, and what is used instead of each: another one's id, or NONE.
Instead = tuple[tuple[int, int], ...]
NOTHING_INSTEAD: Final[Instead] = ()


class ViewedBlock(Protocol):
    """A block as a broker works on it (`encoding.BlockView`): what is needed of it here."""

    @property
    def block(self) -> Block:
        """The block."""

    @property
    def frames(self) -> Mapping[int, list[bytes]]:
        """Frames of topic streams, by run."""

    def stored(self) -> list[bytes]:
        """The payloads as stored."""

    def raw_runs(self, recoder: Recoder, runs: Iterable[int]) -> list[bytes | None]:
        """The payloads of these runs, decompressed."""

    def tagged(self, tagging: Tagging) -> TaggedBlock:
        """The payloads in their first form."""

    def frames_of(self, index: int, is_joined: bool) -> list[bytes]:
        """A run's frames."""

    def add_frames(self, sent: SentRuns, index: int) -> None:
        """A run's frames were sent to a link."""

    def dictionaries(self, streamed: Collection[int]) -> tuple[Dictionary, ...]:
        """What the frames of these topics refer to."""


class TaggedRun(NamedTuple):
    """A run's payloads with their tag bytes (None: cannot be decoded), tags, and dictionary (`used`; or NONE)."""

    payloads: list[bytes | None]
    tags: list[int]
    used: int


class TaggedBlock(NamedTuple):
    """A block's payloads with their tag bytes, and their tags. By run: the dictionary `used`, or NONE, the bytes of
    payloads that it has compressed (`with_bytes`) and of the others (`plain_bytes`), and where that is not the newest
    the family that has a newer one (`outdated`)."""

    payloads: list[bytes | None]
    tags: list[int]
    used: list[int]
    with_bytes: list[int]
    plain_bytes: list[int]
    outdated: list[bytes | None]

    def add(self, run: TaggedRun, newest: Dictionary | None) -> None:
        """The next run; `newest`: the newest dictionary of its family."""
        with_bytes = plain_bytes = 0
        for payload, tag in zip(run.payloads, run.tags, strict=True):
            if payload is None:
                continue
            if tag >= FIRST_DICTIONARY:
                with_bytes += len(payload)
            else:
                plain_bytes += len(payload)
        self.payloads.extend(run.payloads)
        self.tags.extend(run.tags)
        self.used.append(run.used)
        self.with_bytes.append(with_bytes)
        self.plain_bytes.append(plain_bytes)
        newer = newest is not None and run.used not in (NONE, newest.id)
        self.outdated.append(newest.family if newest is not None and newer else None)


class SentBytes(NamedTuple):
    """What a link carries of a block: the dictionaries that it needs, bytes of payloads that need none, what was saved
    by dictionaries, and bytes with another than the newest, by family."""

    named: tuple[int, ...] = ()
    plain_bytes: int = 0
    saved_bytes: int = 0
    outdated: tuple[tuple[bytes, int], ...] = ()


class SentRuns:
    """The runs of a form that a link gets, put together."""

    __slots__ = ("_named", "_outdated", "_plain_bytes")

    def __init__(self) -> None:
        self._named: dict[int, int] = {}
        self._outdated: dict[bytes, int] = {}
        self._plain_bytes = 0

    def add(self, used: int, with_bytes: int, plain_bytes: int, outdated: bytes | None) -> None:
        """A run."""
        if with_bytes:
            self._named[used] = self._named.get(used, 0) + with_bytes
            if outdated is not None:
                self._outdated[outdated] = self._outdated.get(outdated, 0) + with_bytes
        self._plain_bytes += plain_bytes

    def add_of(self, form: TaggedBlock, index: int) -> None:
        """A run of a form."""
        self.add(form.used[index], form.with_bytes[index], form.plain_bytes[index], form.outdated[index])

    def sent(self, savings: FamilySavings) -> SentBytes:
        """All of them."""
        saved_bytes = sum([savings.saved_bytes(used, size) for used, size in self._named.items()])
        return SentBytes(tuple(self._named), self._plain_bytes, saved_bytes, tuple(self._outdated.items()))


class Tagging(NamedTuple):
    """What a run's payloads are tagged with. `savings`: what dictionaries save on the way to subscribers."""

    recoder: Recoder
    aliases: AliasTable
    newest: NewestDictionary
    opted_out: IsOptedOut
    savings: FamilySavings
    newest_of_bytes: NewestDictionary

    def block(self, view: ViewedBlock, instead: Instead) -> TaggedBlock:
        """A block's payloads in one form."""
        meta, stored = view.block.meta, view.stored()
        made = TaggedBlock([], [], [], [], [], [])
        at = 0
        for run in meta.runs:
            topic = meta.topics[run.topic]
            named = meta.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else NONE
            tagged = self._run(topic, run, named, stored[at : at + run.count], instead)
            made.add(tagged, self.newest(topic) if tagged.used != NONE else None)
            at += run.count
        return made

    def _run(self, topic: bytes, run: Run, named: int, stored: list[bytes], instead: Instead) -> TaggedRun:
        """A run's payloads; `named`: the dictionary that they are stored with."""
        if topic.startswith(DICTIONARY_PREFIX):
            return TaggedRun(list(stored), [RAW] * len(stored), NONE)
        if run.encoding == RAW and self.opted_out(topic):
            return _with_tag(RAW, stored, NONE)
        if named != NONE:
            other = instead_of(named, instead)
            if other == named:
                alias = self.aliases.alias_for(named)
                if alias != RAW:
                    return _with_tag(alias, stored, named)
                return self._each(Encoded(FIRST_DICTIONARY, named, b""), stored, None)
            return self._each(Encoded(FIRST_DICTIONARY, named, b""), stored, self._held(other))
        newest = self.newest(topic)
        if newest is not None and instead:
            other = instead_of(newest.id, instead)
            newest = newest if other == newest.id else self._held(other)
        return self._each(Encoded(run.encoding, None, b""), stored, newest, recode=False)

    def _held(self, dictionary: int) -> Dictionary | None:
        return None if dictionary == NONE else self.recoder.get(dictionary)

    def _each(
        self, like: Encoded, stored: list[bytes], dictionary: Dictionary | None, recode: bool = True
    ) -> TaggedRun:
        """Payloads stored `like` this one, compressed with `dictionary`. `recode`: also where that is longer."""
        payloads: list[bytes | None] = []
        tags: list[int] = []
        for payload in stored:
            tag, tagged = self._one(Encoded(like.encoding, like.dictionary, payload), dictionary, recode)
            tags.append(tag)
            payloads.append(tagged)
        return TaggedRun(payloads, tags, NONE if dictionary is None else dictionary.id)

    def _one(self, stored: Encoded, newest: Dictionary | None, recode: bool) -> tuple[int, bytes | None]:
        """(tag, tagged payload); None for one that cannot be decoded."""
        recoder = self.recoder
        try:
            if stored.encoding == RAW:
                stored = recoder.encode(stored.data, newest)
            elif recode:
                stored = recoder.encode(recoder.to_raw(*stored), newest)
            elif newest is not None:
                recoded = recoder.encode(recoder.to_raw(*stored), newest)
                stored = recoded if len(recoded.data) < len(stored.data) else stored
            tag, data = recoder.to_aware(*stored, self.aliases)
        except DictionaryError:
            return RAW, None
        return tag, bytes((tag,)) + data

    def measure(self, view: ViewedBlock, made: TaggedBlock) -> None:
        """A form was made for links that lack dictionaries: what would the newest ones save on it?"""
        first = view.tagged(self)
        for index, held in enumerate(made.used):
            if first.used[index] != held:
                self.note(view, index, held, made.with_bytes[index] + made.plain_bytes[index])

    def note(self, view: ViewedBlock, index: int, held: int, sent_bytes: int) -> None:
        """A run's payloads took so many bytes with the dictionary `held`: would they take fewer with the newest?"""
        meta = view.block.meta
        run = meta.runs[index]
        topic = meta.topics[run.topic]
        newest = self.newest(topic)
        if newest is None or newest.id == held:
            return
        of_bytes = self.newest_of_bytes(topic)
        if of_bytes is not None and of_bytes.id not in (newest.id, held) and self.savings.wants(of_bytes.id, held):
            self._note_tried(view, index, of_bytes, held, sent_bytes)
        first = view.tagged(self)
        if first.used[index] == newest.id:
            with_newest = first.with_bytes[index] + first.plain_bytes[index]
            self.savings.note(newest.id, held, run.count, sent_bytes, with_newest)
        elif self.savings.wants(newest.id, held):
            self._note_tried(view, index, newest, held, sent_bytes)

    def _note_tried(self, view: ViewedBlock, index: int, dictionary: Dictionary, held: int, sent_bytes: int) -> None:
        """Encode a run's payloads to know what they would take."""
        raw = [payload for payload in view.raw_runs(self.recoder, [index]) if payload is not None]
        sizes = [1 + len(self.recoder.encode(payload, dictionary).data) for payload in raw]
        self.savings.note(dictionary.id, held, len(raw), sent_bytes, sum(sizes))

    def recoded(self, run: Run, raw: Sequence[bytes | None], other: int) -> tuple[Run, list[bytes], int]:
        """A run for a Python client's link with another dictionary, or none: (the run, its payloads, the dictionary).

        Payloads that cannot be decoded are empty.
        """
        payloads = [payload or b"" for payload in raw]
        dictionary = self._held(other)
        packed = [self.recoder.encode(payload, dictionary) for payload in payloads]
        if dictionary is not None:
            if all([each.dictionary == other for each in packed]):
                return run, [each.data for each in packed], other
            return run._replace(encoding=RAW), payloads, NONE
        if all([each.encoding == DEFLATE for each in packed]):
            return run._replace(encoding=DEFLATE), [each.data for each in packed], NONE
        return run._replace(encoding=RAW), payloads, NONE


def instead_of(dictionary: int, instead: Instead) -> int:
    for id, other in instead:
        if id == dictionary:
            return other
    return dictionary


def _with_tag(tag: int, stored: list[bytes], used: int) -> TaggedRun:
    head = bytes((tag,))
    return TaggedRun([head + payload for payload in stored], [tag] * len(stored), used)
