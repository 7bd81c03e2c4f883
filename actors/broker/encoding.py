"""The encoding of blocks: the bytes that subscribers get, made once for each kind of session, however many there are.

A *kind* says everything that decides the bytes for subscribers without packet ids: MQTT version, dictionary-aware or
not, Maximum Packet Size; or a Python client's link. `BlockView` holds what several kinds need of one block, made at
most once: its payloads as stored, raw, and tagged.

What dictionary-aware links get depends on the dictionaries that each has (TAPD, `dictionaries.link_choice`). Made first
is the form that uses the newest, or what the publisher used; who lacks one of these gets another form, in which it is
replaced (`Instead`). So whoever holds the same dictionaries shares the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast

import msgpack

from lexicast.cluster.blocks import RAW, RETAIN, Block, Run
from lexicast.cluster.properties import USER_PROPERTY
from lexicast.cluster.selection import cut_in_two, for_readers, select
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import NONE, FamilySavings
from lexicast.compression.opening import AT_ONCE_BYTES_MAX, Room
from lexicast.compression.streams.topic_streams import FrameBatch
from lexicast.compression.wire import AliasTable, Recoder

from ..mqtt.codec.encode import encode_qos0_run, publish_size
from ..mqtt.codec.packets import V5
from ..mqtt.codec.properties import MESSAGE_EXPIRY_S, SUBSCRIPTION_ID, write_properties
from ..mqtt.codec.topic_aliases import KNOWN_ALIASES, NO_ALIASES, TopicAliases, encode_aliased_run
from .dictionaries.keeper import IsOptedOut, NewestDictionary
from .dictionaries.link_blocks import recoded, sent_on_link, with_frames
from .dictionaries.other_forms import FORMS_MAX, OtherForms
from .dictionaries.payload_opening import asked_block, decompressed, raw_run
from .dictionaries.tagging import NOTHING_INSTEAD, Instead, SentBytes, SentRuns, TaggedBlock, Tagging

if TYPE_CHECKING:
    from lexicast.cluster.content.predicate import Predicate

T = TypeVar("T")

LINK: Final = 0  # `Kind.version` of Python clients on links


class Kind(NamedTuple):
    """What decides the bytes of a subscriber; `packet_bytes_max` 0: no limit; `streams`: takes topic streams.

    `aware`: gets payloads compressed with the dictionaries that its link has. `topic_aliases`: how many are used.
    """

    version: int
    aware: bool = False
    packet_bytes_max: int = 0
    streams: bool = False
    topic_aliases: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it gets payloads as they were published, not compressed."""
        return not self.aware and self.version != LINK


class Grant(NamedTuple):
    """How a subscriber gets the publications of a topic: its matching subscriptions put together.

    `no_local`: some of them want nothing that the subscriber itself published; what it published goes by `own` then.
    `where`: only publications for which this holds. `any_of`: several subscriptions, some with such a condition; those
    that hold for a publication count, put together (`content.choosing`), and the other fields are the most that comes
    of it.
    """

    qos: int = 0
    retain_as_published: bool = False
    no_local: bool = False
    ids: tuple[int, ...] = ()
    own: Grant | None = None
    where: Predicate | None = None
    any_of: tuple[Grant, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether each publication is looked at."""
        return self.where is not None or bool(self.any_of)


_NO_ALIASES: frozenset[int] = frozenset()

# One entry a topic of the block: the grant, or None when the subscriber does not want the topic.
Grants = tuple[Grant | None, ...]


class Forms(Protocol):
    """The forms of what is sent for links that lack dictionaries of the first one (`OtherForms`)."""

    def form(self, instead: Instead) -> EncodedBlock:
        """The form in which other dictionaries, or none, take the place of some."""

    def measure(self, instead: Instead) -> int:
        """Make a form, and so find out what dictionaries save on it; how many bytes of it need none."""


class EncodedBlock(NamedTuple):
    """Bytes ready to be written, and what has to be written before them: dictionaries, and bindings of aliases.

    For dictionary-aware links: what of it they have to account (`sent`), and what makes the form for links that lack
    dictionaries of this one (`other`). `topic_aliases`: those that it tells whoever gets it, as bits.
    """

    data: bytes
    aliases: frozenset[int] = frozenset()
    records: int = 0
    dictionaries: tuple[Dictionary, ...] = ()
    sent: SentBytes | None = None
    other: Forms | None = None
    topic_aliases: int = 0


class BlockView:
    """One block as a broker works on it.

    `batches`: those of its topics (by index) that go as topic streams to whoever is in step, and `frames` by run; none
    in a block out of the past. `is_rest`: what follows a part of a block that is delivered (`Encoder.parts`).
    """

    __slots__ = (
        "_end",
        "_payloads",
        "_raw",
        "_tagged",
        "batches",
        "block",
        "choice",
        "frames",
        "highest_qos",
        "is_raw",
        "is_rest",
        "now_us",
    )

    def __init__(self, block: Block, now_us: int, raw: Sequence[bytes | None] | None = None) -> None:
        """`raw`: the payloads decompressed, where they are known; None for one that cannot be."""
        self.block = block
        self.now_us = now_us
        self.highest_qos = block.highest_qos
        self.is_raw = block.is_raw
        self._payloads: list[bytes] | None = None
        self._raw: list[bytes | None] | None = None if raw is None else [*raw]
        self._end = block.count
        self.is_rest = False
        self._tagged: dict[Instead, TaggedBlock] = {}
        self.batches: dict[int, FrameBatch] = {}
        self.frames: dict[int, list[bytes]] = {}
        # A `content.choosing.BlockChoice`: what subscribers with conditions get of it.
        self.choice: object = None

    def stored(self) -> list[bytes]:
        """The payloads as stored."""
        if self._payloads is None:
            self._payloads = self.block.payloads()
        return self._payloads

    def raw(self, recoder: Recoder) -> list[bytes | None]:
        """The payloads decompressed; None for one whose dictionary is missing, that is damaged, or that would make of
        all of them more than a `Room` has: then whoever delivers takes the block in `Encoder.parts`."""
        if self._raw is None:
            meta, stored, self._end = self.block.meta, self.stored(), self.block.count
            if self.is_raw:
                self._raw = list(stored)
            else:
                self._raw, room = [], recoder.room()
                for run in meta.runs:
                    at = len(self._raw)
                    self._raw += raw_run(recoder, run, meta.dictionaries, stored[at : at + run.count], room)
                    if room.refused:  # these, and whatever follows
                        self._end = len(self._raw) - room.refused
                        self._raw[self._end :] = [None] * (len(stored) - self._end)
                        break
        return self._raw

    @property
    def is_much(self) -> bool:
        """Whether `raw` had no room for all."""
        return self._end < self.block.count

    def asked(self, recoder: Recoder) -> list[bytes | None]:
        """The payloads as conditions ask them, all of them: where there is no room, as much as they look at."""
        raw = self.raw(recoder)
        if not self.is_much:
            return raw
        self._raw = None
        return asked_block(recoder, self.block.meta, self.stored())

    def may_become_much(self, payload_bytes_max: int) -> bool:
        """Whether there may be no room for all: of nearly every block it is known without a look at its payloads."""
        if self.is_raw:
            return False
        count = self.block.count
        return count > 1 and count * payload_bytes_max > AT_ONCE_BYTES_MAX and (self._raw is None or self.is_much)

    def cut(self, recoder: Recoder) -> tuple[BlockView, BlockView] | None:
        """The part that there is room for, and the rest; None where that is all."""
        if not self.may_become_much(recoder.payload_bytes_max):
            return None
        raw = self.raw(recoder)
        if not self.is_much:
            return None
        self._raw = None  # the part has it
        before, behind = cut_in_two(self.block, self._end)
        part, rest = BlockView(before, self.now_us, raw[: self._end]), BlockView(behind, self.now_us)
        part.is_rest, rest.is_rest = self.is_rest, True
        return part, rest

    def tagged(self, tagging: Tagging, instead: Instead = NOTHING_INSTEAD) -> TaggedBlock:
        """The payloads with their tag byte. What is stored raw, or deflated by a publisher that had no dictionary yet,
        is compressed with the family's newest; what a dictionary has compressed passes untouched. `instead` of some
        dictionaries others are used: at most FORMS_MAX such forms, further links get one without any of these."""
        made = self._tagged.get(instead)
        if made is None:
            if len(self._tagged) > FORMS_MAX and any([other != NONE for _, other in instead]):
                return self.tagged(tagging, tuple([(id, NONE) for id, _ in instead]))
            made = self._tagged[instead] = tagging.block(self, instead)
            if instead:
                tagging.measure(self, made)
        return made

    def raw_runs(self, recoder: Recoder, runs: Iterable[int]) -> list[bytes | None]:
        """`raw` of these runs alone."""
        if self._raw is not None:
            return self.of_runs(self._raw, runs)
        meta, stored, room = self.block.meta, self.stored(), recoder.room()
        raw: list[bytes | None] = []
        for index in runs:
            raw += raw_run(recoder, meta.runs[index], meta.dictionaries, self.of_runs(stored, [index]), room)
        return raw

    def of_runs(self, payloads: Sequence[T], runs: Iterable[int]) -> list[T]:
        """The part of all payloads that belongs to these runs."""
        ends = list(accumulate([run.count for run in self.block.meta.runs], initial=0))
        return [payload for index in runs for payload in payloads[ends[index] : ends[index + 1]]]

    def with_frames(
        self,
        payloads: list[bytes | None],
        tags: list[int],
        streamed: Collection[int],
        joined: Collection[int] = (),
    ) -> tuple[list[bytes | None], list[int]]:
        """Tagged payloads and their tags with frames in the place of the payloads of the topics `streamed`; the past
        comes along of those that are `joined` too."""
        payloads, tags, at = list(payloads), list(tags), 0
        for index, run in enumerate(self.block.meta.runs):
            end = at + run.count
            if run.topic in streamed and index in self.frames:
                payloads[at:end] = self.frames_of(index, run.topic in joined)
                tags[at:end] = [RAW] * run.count  # as RAW, they need no binding
            at = end
        return payloads, tags

    def frames_of(self, index: int, is_joined: bool) -> list[bytes]:
        """A run's frames; the first of a topic brings the past along where the topic `is_joined`."""
        frames = self.frames[index]
        batch = self.batches[self.block.meta.runs[index].topic]
        if is_joined and frames[0] is batch.frames[0]:
            return batch.with_past()[: len(frames)]
        return frames

    def add_frames(self, sent: SentRuns, index: int) -> None:
        """A run's frames were sent to a link: by a model, or as what needs no dictionary."""
        batch = self.batches[self.block.meta.runs[index].topic]
        size, model, newest = sum(map(len, self.frames[index])), batch.model, batch.newest
        if model is None:
            sent.add(NONE, 0, size, None)
        else:
            outdated = newest is not None and newest.id != model.id
            sent.add(model.id, size, 0, model.family if outdated else None)

    def dictionaries(self, streamed: Collection[int]) -> tuple[Dictionary, ...]:
        """What the frames of these topics refer to."""
        found = [self.batches[topic].dictionary for topic in streamed]
        return tuple([dictionary for dictionary in found if dictionary is not None])

    def as_sent(self, block: Block) -> BlockView:
        """The same publications in another form, with the same frames."""
        view = BlockView(block, self.now_us)
        view.batches, view.frames = self.batches, self.frames
        return view

    def expired(self, run: Run) -> bool:
        """Whether the run's publications have expired (T_max)."""
        return run.expiry_ms > 0 and self.block.time_us + run.expiry_ms * 1000 <= self.now_us


def run_properties(kind: Kind, run: Run, grant: Grant, time_us: int, now_us: int) -> bytes:
    """A run's MQTT 5 properties as sent: carried through, expiry counted down, subscription identifiers added.

    `time_us`: its block's.
    """
    if kind.version != V5 or not (run.properties or run.expiry_ms or grant.ids):
        return b""
    properties = dict(run.properties or {})
    if USER_PROPERTY in properties:
        properties[USER_PROPERTY] = list(properties[USER_PROPERTY])
    if run.expiry_ms:
        left_us = time_us + run.expiry_ms * 1000 - now_us
        # [MQTT-3.3.2-6]; 0 for what has less than a second in all, and for what is sent again after its time.
        properties[MESSAGE_EXPIRY_S] = max(0, -(-left_us // 1_000_000)) if run.expiry_ms >= 1000 else 0
    if grant.ids:
        properties[SUBSCRIPTION_ID] = list(grant.ids)  # [MQTT-3.3.4-3]
    return write_properties(properties)


class Encoder:
    """Encodes blocks for one broker: its recoder, its aliases, its newest dictionaries.

    `savings`: which part of the bytes dictionaries save on the way to subscribers, measured where both are made.
    """

    def __init__(
        self,
        recoder: Recoder,
        aliases: AliasTable,
        newest: NewestDictionary,
        opted_out: IsOptedOut = lambda topic: False,
        newest_of_bytes: NewestDictionary = lambda topic: None,
        topic_aliases_max: int = 0,
    ) -> None:
        """`topic_aliases_max`: how many topics have an alias towards clients."""
        self.recoder = recoder
        self.topic_aliases = TopicAliases(topic_aliases_max)
        self.savings = FamilySavings()
        self._tagging = Tagging(recoder, aliases, newest, opted_out, self.savings, newest_of_bytes)
        self._pack = msgpack.Packer(autoreset=True).pack

    def payloads(self, kind: Kind, view: BlockView) -> tuple[list[bytes | None], list[int]]:
        """What subscribers of `kind` get as payloads (None: cannot be decoded), and the tags (empty for plain ones)."""
        if kind.aware:
            form = view.tagged(self._tagging)
            return form.payloads, form.tags
        return view.raw(self.recoder), []

    def parts(self, view: BlockView) -> Iterator[BlockView]:
        """A block for plain sessions, in as many parts as it takes to have room for what each becomes, mostly one: each
        is to be delivered before the next is asked for."""
        while (found := view.cut(self.recoder)) is not None:
            part, view = found
            yield part
        yield view

    def form(self, view: BlockView, instead: Instead = NOTHING_INSTEAD) -> TaggedBlock:
        """What dictionary-aware sessions get, in one of its forms."""
        return view.tagged(self._tagging, instead)

    def recoded(self, view: BlockView, instead: Instead) -> Block:
        """A block for a Python client that may not have some dictionaries."""
        return recoded(view, instead, self._tagging)

    def decompressed(
        self, encoding: int, dictionary: int | None, stored: list[bytes | None], room: Room | None = None
    ) -> list[bytes | None]:
        """Payloads as plain sessions get them; None for one whose dictionary is missing, that is damaged, or for which
        there is no `room` (None: a new one)."""
        return decompressed(self.recoder, encoding, dictionary, stored, room or self.recoder.room())

    def tagged(self, view: BlockView) -> list[bytes | None]:
        """What dictionary-aware subscribers get as payloads."""
        return view.tagged(self._tagging).payloads

    def shared(
        self,
        kind: Kind,
        view: BlockView,
        grants: Grants,
        streamed: Collection[int] = (),
        instead: Instead = NOTHING_INSTEAD,
        joined: Collection[int] = (),
        aliases: int = NO_ALIASES,
    ) -> EncodedBlock:
        """The block's publications at QoS 0 for every subscriber of `kind` with these grants.

        `streamed`: the topics (by index into the block's) of which they get frames, `joined`: those of which the past
        comes along; `instead`: see `BlockView.tagged`; `aliases`: see `topic_aliases`.
        """
        if kind.version == LINK:
            return self._for_link(kind, view, grants, streamed, instead, joined)
        form = view.tagged(self._tagging, instead) if kind.aware else None
        payloads: list[bytes | None] = view.raw(self.recoder) if form is None else form.payloads
        tags: list[int] = [] if form is None else form.tags
        if streamed:
            payloads, tags = view.with_frames(payloads, tags, streamed, joined)
        block, (topics, runs, _, _, _, _), v5 = view.block, view.block.meta, kind.version == V5
        parts: list[bytes] = []
        at, records, total = 0, 0, len(payloads)
        # Of most blocks every payload can be decoded, and most clients take packets of any length.
        all_fit = not kind.packet_bytes_max and None not in payloads
        used: set[int] = set()
        told, most = 0, kind.topic_aliases if aliases else 0
        sent = None if form is None else SentRuns()
        for index, run in enumerate(runs):
            _, topic_index, flags, _, expiry_ms, _, _, count = run
            grant = grants[topic_index]
            if grant is not None and not (expiry_ms and view.expired(run)):
                topic = topics[topic_index]
                properties = run_properties(kind, run, grant, block.time_us, view.now_us) if v5 else b""
                whole = payloads if count == total else payloads[at : at + count]
                fit = cast("list[bytes]", whole) if all_fit else self.fitting(kind, topic, whole, 0, properties)
                retain = grant.retain_as_published and bool(flags & RETAIN)  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
                number = self.topic_aliases.number_of(topic, most) if most and fit else 0
                if number:
                    is_known = aliases == KNOWN_ALIASES or told >> number & 1 == 1
                    told |= 0 if is_known else 1 << number
                    parts.append(encode_aliased_run(topic, fit, number, is_known, retain, properties))
                else:
                    parts.append(encode_qos0_run(kind.version, topic, fit, retain, properties))
                records += len(fit)
                if form is not None and sent is not None:
                    used.update(tags[at : at + count])
                    if topic_index in streamed:
                        view.add_frames(sent, index)
                    else:
                        sent.add_of(form, index)
            at += count
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if sent is None:
            return EncodedBlock(data, _NO_ALIASES, records, topic_aliases=told)
        account = sent.sent(self.savings)
        other = self._other_forms(kind, view, grants, streamed, joined, aliases) if account.named else None
        return EncodedBlock(data, frozenset(used), records, view.dictionaries(streamed), account, other, told)

    def _other_forms(
        self,
        kind: Kind,
        view: BlockView,
        grants: Grants,
        streamed: Collection[int],
        joined: Collection[int],
        aliases: int = NO_ALIASES,
    ) -> OtherForms[EncodedBlock]:
        def make(instead: Instead) -> EncodedBlock:
            return self.shared(kind, view, grants, streamed, instead, joined, aliases)

        return OtherForms(make)

    def needed_aliases(self, kind: Kind, view: BlockView, grants: Grants) -> int:
        """The topic aliases of what subscribers of `kind` get of a live block, as bits; given where there were none."""
        if not kind.topic_aliases:
            return 0
        topics = view.block.meta.topics
        wanted = [topic for topic, grant in zip(topics, grants, strict=True) if grant is not None]
        return self.topic_aliases.numbers_of(wanted, kind.topic_aliases)

    @staticmethod
    def fitting(kind: Kind, topic: bytes, payloads: list[bytes | None], qos: int, properties: bytes) -> list[bytes]:
        """The payloads that can be decoded and are within the client's Maximum Packet Size [MQTT-3.1.2-24]."""
        fit = [payload for payload in payloads if payload is not None] if None in payloads else payloads
        limit = kind.packet_bytes_max
        if limit:
            size = publish_size
            fit = [p for p in fit if p is not None and size(kind.version, len(topic), len(p), qos, properties) <= limit]
        return fit  # type: ignore[return-value]  # None was left out above

    def _for_link(
        self,
        kind: Kind,
        view: BlockView,
        grants: Grants,
        streamed: Collection[int],
        instead: Instead,
        joined: Collection[int],
    ) -> EncodedBlock:
        whole = view
        if instead:
            view = view.as_sent(recoded(view, instead, self._tagging))
        if streamed:
            view = view.as_sent(with_frames(view, streamed, joined))
        block = view.block
        runs = block.meta.runs
        if None in grants or any([run.expiry_ms for run in runs]):
            keep: list[bool] = []
            for run in runs:
                keep += [grants[run.topic] is not None and not view.expired(run)] * run.count
            part = select(block, keep)
            if part is None:
                return EncodedBlock(b"")
            block = part
        data = self._pack(for_readers(block).to_wire())
        if not kind.aware:
            return EncodedBlock(data, records=block.count)
        account = sent_on_link(block, whole, streamed, self._tagging)
        other = self._other_forms(kind, whole, grants, streamed, joined) if account.named else None
        return EncodedBlock(data, frozenset(), block.count, view.dictionaries(streamed), account, other)
