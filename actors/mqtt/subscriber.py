"""Deliveries to one MQTT connection: QoS 0 as shared bytes, QoS 1 and 2 numbered by the session within its window.

What does not fit is not queued: the subscriber lags from that offset on (`paced_subscriber`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lexicast.cluster.blocks import QOS_MASK, RETAIN, Block, Run
from lexicast.cluster.security.authors import publisher_of
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.wire import ALIAS_TOPIC

from ..broker.content.choosing import chosen
from ..broker.dictionaries.link_choice import ConnectionDictionaries
from ..broker.dictionaries.tagging import Instead, SentRuns, TaggedBlock
from ..broker.encoding import BlockView, EncodedBlock, Grant, Grants, Kind, run_properties
from ..broker.streaming import in_step, took
from .codec.encode import encode_qos0_run, encode_qos_run, split_qos_packet
from .codec.topic_aliases import with_alias
from .codec.wire import pack_u16
from .paced_subscriber import PacedSubscriber
from .retained_sending import Feed, RetainedSending
from .session import InFlight, Resend, Session

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

    from ..broker.catching_up.run_packets import RunPackets
    from ..broker.engine import BrokerEngine

# So much of the past is written at once before the socket is looked at.
WRITE_BYTES = 64 * 1024


# More than 25 methods: what a connection was introduced to decides the form of whatever is written.
class MqttSubscriber(PacedSubscriber):
    """One session's live connection, as a subscriber. `send`: the transport's own; `dictionaries`: those of a
    dictionary-aware connection."""

    __slots__ = ("_gathered", "_gathered_bytes", "_live_writes", "dictionaries", "discarded_records", "send")

    # What feeds bring is marked as retained, whatever the subscription says.
    feeds_are_retained = True

    def __init__(
        self, engine: BrokerEngine, session: Session, kind: Kind, write: Callable[[bytes], None], drops: bool
    ) -> None:
        super().__init__(engine, session, kind, drops)
        self.send = write
        self.dictionaries = self._connection_dictionaries()
        self.discarded_records = 0
        self._gathered: list[bytes] | None = None
        self._gathered_bytes = 0
        self._live_writes = engine.live.writes

    def write(self, data: bytes) -> None:
        writes = self._live_writes
        writes.sent_bytes += len(data)
        if not writes.on:
            self.send(data)
            return
        if self._gathered is None:
            self._gathered = []
            writes.add(self)
        self._gather_more(data)

    def _connection_dictionaries(self) -> ConnectionDictionaries | None:
        if not self.kind.aware:
            return None
        return self._engine.dictionary_links.connection(self.session.client_id, self.introduce, self.rights)

    def discarded(self, group: int, first: int) -> None:
        """Retention took what this session had not got: an upper bound of how much."""
        missed = first - self.lagging.get(group, first)
        if missed > 0:
            self.discarded_records += missed
            self.lagging[group] = first

    # -- deliveries

    def write_tagged(self, encoded: EncodedBlock) -> None:
        """The form for the dictionaries that this connection has; aliases are introduced before their first use."""
        own = self.dictionaries
        if own is not None:
            encoded = own.form(encoded)
        self._write_introduced(encoded)

    def _write_introduced(self, encoded: EncodedBlock) -> None:
        own = self.dictionaries
        if own is not None and (encoded.aliases or encoded.dictionaries):
            for dictionary in encoded.dictionaries:
                self.introduce(dictionary)
            lacking = own.introductions.lacking(self._engine.aliases, encoded.aliases)
            for binding in lacking:
                bound = self._engine.recoder.get(binding.dictionary)
                if bound is not None:
                    self.introduce(bound)
                self.write(encode_qos0_run(self.kind.version, ALIAS_TOPIC, [binding.pack()]))
        self.write(encoded.data)
        if encoded.topic_aliases:
            self.known_aliases |= encoded.topic_aliases

    def introduce(self, dictionary: Dictionary) -> None:
        """Send a dictionary once a connection."""
        own = self.dictionaries
        if own is not None and own.introductions.needs_dictionary(dictionary.id):
            topic = dictionary_topic(dictionary.family)
            self.write(encode_qos0_run(self.kind.version, topic, [dictionary.pack()], True))

    def gets_dictionary(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> bool:
        return self.dictionaries is None or self.dictionaries.gets(dictionary, instead_of_bytes)

    def has_dictionary(self, dictionary: int) -> bool:
        return self.dictionaries is None or self.dictionaries.introductions.knows(dictionary)

    @property
    def takes_packets(self) -> bool:
        """All but dictionary-aware sessions: what was introduced to those decides what comes next. Nor those of whose
        publications each is looked at."""
        return self.dictionaries is None and not self.chooses

    def take_packets(self, group: int, runs: Iterable[RunPackets]) -> bool:
        """Up to WRITE_BYTES at once, no more than there is room for; the cursor stays at the first that is not sent."""
        heads: list[bytes] = []
        sent: list[InFlight | None] = []
        tails: list[bytes] = []
        size, room = 0, self.session.room
        end = self.lagging[group]
        for run in runs:
            heads += run.heads
            sent += run.sent
            tails += run.tails
            size += run.size_bytes
            end = run.end
            if size >= WRITE_BYTES or len(sent) > room:
                if not self._write_packets(group, heads, sent, tails, end):
                    return False
                heads, sent, tails, size, room = [], [], [], 0, self.session.room
        return self._write_packets(group, heads, sent, tails, end)

    def _write_packets(
        self, group: int, heads: list[bytes], sent: list[InFlight | None], tails: list[bytes], end: int
    ) -> bool:
        """False when the window is used up, or the socket full now. `end`: the cursor once all is sent."""
        self.lagging[group] = end
        if not sent:
            return not self.blocked
        numbered = [each for each in sent if each is not None]
        ids = self.session.send_all(numbered)
        between = list(map(pack_u16, ids))
        count = len(sent)
        if len(ids) < len(numbered):
            count = sent.index(numbered[len(ids)])
            self._window_full = True
            self.block()
            self.lag(group, numbered[len(ids)][1], live=group in self.missed_live)
        if len(between) < count:  # QoS 0 in between
            following = iter(between)
            between = [b"" if each is None else next(following) for each in sent[:count]]
        parts = [b""] * (3 * count)
        parts[::3], parts[1::3], parts[2::3] = heads[:count], between, tails[:count]
        if count and self._gathered is None:
            self.write(b"".join(parts))
        elif count:
            data = b"".join(parts)
            self._live_writes.sent_bytes += len(data)
            self._gather_more(data)
        return not self.blocked

    def gather(self) -> None:
        """A session that returns gets its pages in one write, as long as they are short."""
        self._gathered = []

    def _gather_more(self, data: bytes) -> None:
        assert self._gathered is not None
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= WRITE_BYTES:
            self.send_gathered()
            self.gather()

    def send_gathered(self) -> None:
        """See `gather`."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, None, 0
        if gathered:
            self.send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def deliver_with_ids(self, view: BlockView, grants: Grants) -> int | None:
        """Runs of QoS 1 and 2 with packet ids, QoS 0 in between; stops where the window is used up."""
        streamed: Sequence[int] = ()
        joined: Sequence[int] = ()
        if self.kind.streams and view.batches:
            streamed, joined = self._streamed(view, grants)
        has_aliases = self.kind.topic_aliases > 0
        if has_aliases:  # they are given, and what is known is known of these
            self.alias_form(self._engine.encoder.needed_aliases(self.kind, view, grants))
        form = self._form(view, grants, streamed)
        payloads, tags = self._payloads(view, form)
        if streamed:
            payloads, tags = view.with_frames(payloads, tags, streamed, joined)
        parts: list[bytes] = []
        aliases: set[int] = set()
        sent = SentRuns()
        at, offset = 0, view.block.first
        stopped: int | None = None
        told = 0
        for index, run in enumerate(view.block.meta.runs):
            offset += run.skip
            count = run.count
            grant = self.granting(view, run, grants[run.topic])
            if grant is not None and not view.expired(run):
                data, dealt_with = self._run(view, run, grant, payloads[at : at + count], offset, False)
                parts.append(data)
                if data and has_aliases:
                    told |= 1 << self._number_of(view.block.meta.topics[run.topic])
                if form is not None:
                    aliases.update(tags[at : at + dealt_with])
                    if dealt_with == count and run.topic in streamed:
                        view.add_frames(sent, index)
                    elif dealt_with == count:
                        sent.add_of(form, index)
                if dealt_with < count:
                    stopped = offset + dealt_with
                    self._window_full = True
                    self.block()
                    break
            at += count
            offset += count
        data = b"".join(parts)
        if data:
            dictionaries = view.dictionaries(streamed)
            self._write_chosen(EncodedBlock(data, frozenset(aliases), 0, dictionaries, topic_aliases=told), sent)
        if stopped is None:
            took(self, view, streamed)
        return stopped

    def _form(self, view: BlockView, grants: Grants, streamed: Sequence[int] = ()) -> TaggedBlock | None:
        """The form for the dictionaries that this connection has, or gets now; None where it takes none."""
        own, encoder = self.dictionaries, self._engine.encoder
        if own is None:
            return None
        form = encoder.form(view)
        runs = [
            index
            for index, run in enumerate(view.block.meta.runs)
            if grants[run.topic] is not None and run.topic not in streamed
        ]
        lacking = own.lacking(dict.fromkeys([form.used[index] for index in runs if form.with_bytes[index]]))
        if not lacking:
            return form

        def measure(instead: Instead) -> int:
            other = encoder.form(view, instead)
            return sum([other.plain_bytes[index] for index in runs])

        return encoder.form(view, own.instead(lacking, measure))

    def _payloads(self, view: BlockView, form: TaggedBlock | None) -> tuple[list[bytes | None], list[int]]:
        if form is None:
            return self._engine.encoder.payloads(self.kind, view)
        return form.payloads, form.tags

    def _write_chosen(self, encoded: EncodedBlock, sent: SentRuns) -> None:
        """What was put together of the form for this connection."""
        own = self.dictionaries
        if own is not None:
            own.account(sent.sent(self._engine.encoder.savings))
        self._write_introduced(encoded)

    def _write_one(self, form: TaggedBlock | None, data: bytes, tags: list[int]) -> None:
        """`_write_chosen` of a block of one run."""
        sent = SentRuns()
        if form is not None:
            sent.add_of(form, 0)
        self._write_chosen(EncodedBlock(data, frozenset(tags)), sent)

    def _streamed(self, view: BlockView, grants: Grants) -> tuple[list[int], list[int]]:
        """The topics of which it gets frames, and those of them whose past comes along: it is in step, and nothing of
        theirs is withheld or of QoS 2.

        (paho gives a QoS 2 publication to the program when it is released: not in the order of the connection.)
        """
        runs = view.block.meta.runs
        granted = [self.granting(view, run, grants[run.topic]) for run in runs]
        lost = {
            run.topic
            for run, grant in zip(runs, granted, strict=True)
            if grant is None or min(grant.qos, run.flags & QOS_MASK) > 1
        }
        streamed, joined = in_step(self, view, grants)
        return [topic for topic in streamed if topic not in lost], [topic for topic in joined if topic not in lost]

    def granting(self, view: BlockView, run: Run, grant: Grant | None) -> Grant | None:
        """The grant that counts for this run: another, or none, when this client published it [MQTT-3.8.3-3]."""
        if grant is None or not grant.no_local or run.origin < 0:
            return grant
        return self.granted(view.block.meta.origins[run.origin], grant)

    def granted(self, origin: str | None, grant: Grant) -> Grant | None:
        """`granting` of what `origin` published."""
        own = grant.no_local and origin is not None and publisher_of(origin) == self.session.client_id
        return grant.own if own else grant

    def _run(
        self, view: BlockView, run: Run, grant: Grant, payloads: list[bytes | None], offset: int, retained: bool
    ) -> tuple[bytes, int]:
        """(bytes, how many of the run's publications are dealt with)."""
        kind, block = self.kind, view.block
        _, topic_index, flags, _, _, _, _, _ = run
        topic = block.meta.topics[topic_index]
        version = kind.version
        properties = run_properties(kind, run, grant, block.time_us, view.now_us)
        # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        retain = bool(flags & RETAIN) and (retained or grant.retain_as_published)
        qos = min(grant.qos, flags & QOS_MASK)  # [MQTT-3.8.4-8]
        fitting = self._engine.encoder.fitting
        fit = fitting(kind, topic, payloads, qos, properties)
        named = topic
        # What a feed brings comes at any time: its number may have been given anew meanwhile.
        if kind.topic_aliases and not retained:
            named, properties = self._aliased(topic, properties)
        if qos == 0:
            return encode_qos0_run(version, named, fit, retain, properties), len(payloads)
        count = len(payloads)
        if count == len(fit) == 1:
            packet_id = self.session.send_one(block.group, offset, qos, retained)
            if packet_id == 0:
                return b"", 0
            head, tail = split_qos_packet(version, named, fit[0], qos, retain, properties)
            return head + pack_u16(packet_id) + tail, 1
        offsets: Sequence[int] = range(offset, offset + count)
        if len(fit) < count:
            # What cannot be sent takes no packet id: nothing would ever give its place in the window back.
            offsets = [
                o for o, p in zip(offsets, payloads, strict=True) if fitting(self.kind, topic, [p], qos, properties)
            ]
        ids = self.session.send(block.group, offsets, qos, retained)
        dealt_with = count if len(ids) == len(offsets) else offsets[len(ids)] - offset
        data = encode_qos_run(version, named, fit[: len(ids)], qos, ids, retain, False, properties)
        return data, dealt_with

    def _aliased(self, topic: bytes, properties: bytes) -> tuple[bytes, bytes]:
        """A topic, or b"" where its alias is known, and properties with that; each packet of a run alike."""
        number = self._number_of(topic)
        if not number:
            return topic, properties
        return b"" if self.known_aliases >> number & 1 else topic, with_alias(properties, number)

    def _number_of(self, topic: bytes) -> int:
        """A topic's alias, 0: none is used."""
        most = self.kind.topic_aliases
        return self._engine.encoder.topic_aliases.number_of(topic, most) if most else 0

    # -- retained publications, and those sent again

    def send_retained(self, feed: Feed, grants: Mapping[bytes, Grant]) -> None:
        """The retained publications of new subscriptions."""
        if self.closed:
            return
        if self._retained is None:
            self._retained = RetainedSending(self._send_retained, self._is_free, self._go_on)
        self._retained.add(feed, grants)

    def _send_retained(self, block: Block, granted: Grant) -> bool:
        """One retained publication; False when the window is used up."""
        if self._is_withheld(block):
            return True
        found = chosen(self.broker.view(block), (granted,) * len(block.meta.topics), self._engine.encoder)
        if found is None:
            return True
        view, grants = found
        block = view.block
        run = block.meta.runs[0]
        grant = self.granting(view, run, grants[run.topic])
        if grant is not None and not view.expired(run):
            form = self._form(view, grants)
            payloads, tags = self._payloads(view, form)
            data, dealt_with = self._run(view, run, grant, payloads, block.first + run.skip, self.feeds_are_retained)
            if dealt_with == 0:
                self._window_full = True
                self.block()
                return False
            if data:
                self._write_one(form, data, tags)
        return True

    def _is_withheld(self, block: Block) -> bool:
        """Whether what a feed brings may not be read, or was left by somebody who may not write it any more."""
        meta, rights = block.meta, self._engine.rights
        if not rights.restricted:
            return False
        run = meta.runs[0]
        topic, author = meta.topics[run.topic], meta.origins[run.origin] if run.origin >= 0 else None
        return self.grant(topic) is None or not rights.author_may_write(author, topic)

    def send_again(self, again: Iterable[Resend], blocks: dict[tuple[int, int], Block]) -> None:
        """Publications of an earlier connection, with DUP and their packet ids [MQTT-4.4.0-1]; `blocks` by position.

        Also those that have expired meanwhile: they were sent before [MQTT-4.3.3-7].
        """
        for resend in again:
            block = blocks.get((resend.group, resend.offset))
            if block is None:
                self.session.abandon([resend.packet_id])
                continue
            view, run = self.broker.view(block), block.meta.runs[0]
            topic = block.meta.topics[run.topic]
            granted = self.grant(topic)
            if self.rights is not None and not self.rights.may_read(topic):
                self.session.abandon([resend.packet_id])
                continue
            if granted is not None and granted.chooses:
                found = chosen(view, tuple(map(self.grant, block.meta.topics)), self._engine.encoder)
                granted = None if found is None else found.grants[found.view.block.meta.runs[0].topic]
            grant = self.granting(view, run, granted) or Grant(resend.qos)
            form = self._form(view, (grant,) * len(view.block.meta.topics))
            payloads, tags = self._payloads(view, form)
            properties = run_properties(self.kind, run, grant, view.block.time_us, view.now_us)
            fit = self._engine.encoder.fitting(self.kind, topic, payloads, resend.qos, properties)
            if not fit:
                self.session.abandon([resend.packet_id])
                continue
            retain = bool(run.flags & RETAIN) and (resend.retained or grant.retain_as_published)
            data = encode_qos_run(
                self.kind.version, topic, fit, resend.qos, [resend.packet_id], retain, True, properties
            )
            self._write_one(form, data, tags)
