"""Deliveries to one MQTT connection: QoS 0 as shared bytes, QoS 1 and 2 numbered by the session within its window.

What does not fit is not queued: the subscriber lags from that offset on and is brought up when the socket has drained
or acknowledgements have made half of the window free. Only retained publications of a new subscription and those to
be sent again after a reconnect wait here, as records (at most RETAINED_WAITING_MAX; the session's window).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lexicast.cluster.blocks import QOS_MASK, RETAIN, Block, Run
from lexicast.compression.wire import ALIAS_TOPIC, Introductions
from lexicast.cluster.topics import dictionary_topic

from .encoding import BlockView, Encoded, Grant, Grants, Kind, run_properties
from .mqtt_encode import encode_qos0_run, encode_qos_run
from .session import Resend, Session
from .subscriber import Subscriber

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

    from .engine import Engine

RETAINED_WAITING_MAX = 100_000


class MqttSubscriber(Subscriber):
    """One session's live connection, as a subscriber. `write` is the transport's own."""

    __slots__ = (
        "_engine",
        "_introductions",
        "_retained",
        "_socket_full",
        "_window_full",
        "discarded_records",
        "session",
        "write",
    )

    def __init__(
        self, engine: Engine, session: Session, kind: Kind, write: Callable[[bytes], None], drops: bool
    ) -> None:
        super().__init__(engine, kind, drops)
        self._engine = engine
        self.session = session
        self.write = write  # type: ignore[method-assign]  # one attribute look-up less a delivery
        self._introductions = Introductions() if kind.aware else None
        self._retained: deque[tuple[Block, Grant]] | None = None
        self._socket_full = False
        self._window_full = False
        self.discarded_records = 0

    # -- what stands in the way

    def socket_full(self) -> None:
        """The transport asks for a pause."""
        self._socket_full = True
        self.block()

    def socket_drained(self) -> None:
        """The transport takes more."""
        self._socket_full = False
        self._go_on()

    def acknowledged(self) -> None:
        """Acknowledgements came in: go on when half of the window is free."""
        if self._window_full or self._retained:
            session = self.session
            if session.room * 2 >= session.window:
                self._window_full = False
                self._go_on()

    def _go_on(self) -> None:
        if self._socket_full or self._window_full:
            return
        if self._retained and not self._send_retained():
            return
        self.unblock()

    def discarded(self, group: int, first: int) -> None:
        """Retention took what this session had not got: an upper bound of how much."""
        self.discarded_records += max(0, first - self.lagging.get(group, first))

    # -- deliveries

    def write_tagged(self, encoded: Encoded) -> None:
        """Introduce dictionaries and aliases before their first use on this connection."""
        if self._introductions is not None and encoded.aliases:
            lacking = self._introductions.lacking(self._engine.aliases, sorted(encoded.aliases))
            for binding in lacking:
                dictionary = self._engine.recoder.get(binding.dictionary)
                if dictionary is not None:
                    self.introduce(dictionary)
                self.write(encode_qos0_run(self.kind.version, ALIAS_TOPIC, [binding.pack()]))
        self.write(encoded.data)

    def introduce(self, dictionary: Dictionary) -> None:
        """Send a dictionary once a connection."""
        if self._introductions is not None and self._introductions.needs_dictionary(dictionary.id):
            topic = dictionary_topic(dictionary.family)
            self.write(encode_qos0_run(self.kind.version, topic, [dictionary.pack()], True))

    def deliver_with_ids(self, view: BlockView, grants: Grants) -> int | None:
        """Runs of QoS 1 and 2 with packet ids, QoS 0 in between; stops where the window is used up."""
        payloads, tags = self._engine.encoder.payloads(self.kind, view)
        parts: list[bytes] = []
        aliases: set[int] = set()
        at, offset = 0, view.block.first
        stopped: int | None = None
        for run in view.block.meta.runs:
            offset += run.skip
            grant, count = grants[run.topic], run.count
            if grant is not None and not view.expired(run) and not self._own(view, run, grant):
                part = payloads[at : at + count]
                data, sent = self._run(view, run, grant, part, offset, False)
                parts.append(data)
                if tags:
                    aliases.update(tags[at : at + sent])
                if sent < count:
                    stopped = offset + sent
                    self._window_full = True
                    self.block()
                    break
            at += count
            offset += count
        if parts:
            self.write_tagged(Encoded(b"".join(parts), frozenset(aliases)))
        return stopped

    def _own(self, view: BlockView, run: Run, grant: Grant) -> bool:
        """Whether No Local keeps the run from its publisher [MQTT-3.8.3-3]."""
        return (
            grant.no_local and run.origin >= 0 and view.block.meta.origins[run.origin] == self.session.client_id
        )

    def _run(
        self, view: BlockView, run: Run, grant: Grant, payloads: list[bytes | None], offset: int, retained: bool
    ) -> tuple[bytes, int]:
        """(bytes, how many of the run's publications are dealt with)."""
        topic = view.block.meta.topics[run.topic]
        properties = run_properties(self.kind, view, run, grant)
        retain = bool(run.flags & RETAIN) and (retained or grant.retain_as_published)
        qos = min(grant.qos, run.flags & QOS_MASK)
        encoder = self._engine.encoder
        if qos == 0:
            fit = encoder.fitting(self.kind, topic, payloads, 0, properties)
            return encode_qos0_run(self.kind.version, topic, fit, retain, properties), len(payloads)
        offsets = range(offset, offset + len(payloads))
        ids = self.session.send(view.block.group, offsets, qos, retained)
        sent = payloads[: len(ids)]
        fit = encoder.fitting(self.kind, topic, sent, qos, properties)
        if len(fit) < len(sent):
            keep = [bool(encoder.fitting(self.kind, topic, [payload], qos, properties)) for payload in sent]
            self.session.abandon([packet_id for packet_id, kept in zip(ids, keep, strict=True) if not kept])
            ids = [packet_id for packet_id, kept in zip(ids, keep, strict=True) if kept]
        data = encode_qos_run(self.kind.version, topic, fit, qos, ids, retain, False, properties)
        return data, len(sent)

    # -- retained publications, and those sent again

    def send_retained(self, blocks: Iterable[Block], grant: Grant) -> None:
        """The retained publications of a new subscription."""
        if self._retained is None:
            self._retained = deque()
        room = RETAINED_WAITING_MAX - len(self._retained)
        self._retained.extend([(block, grant) for block in blocks][:room])
        if not self._socket_full:
            self._send_retained()

    def _send_retained(self) -> bool:
        """True when none is left waiting."""
        waiting = self._retained
        while waiting:
            block, grant = waiting[0]
            view = self._engine.view(block)
            run = block.meta.runs[0]
            if not view.expired(run):
                payloads, tags = self._engine.encoder.payloads(self.kind, view)
                data, sent = self._run(view, run, grant, payloads, block.first + run.skip, True)
                if sent == 0:
                    self._window_full = True
                    return False
                if data:
                    self.write_tagged(Encoded(data, frozenset(tags)))
            waiting.popleft()
        self._retained = None
        return True

    def send_again(self, again: list[Resend], blocks: dict[tuple[int, int], Block]) -> None:
        """Publications of an earlier connection, with DUP and their packet ids [MQTT-4.4.0-1]; `blocks` by position."""
        for resend in again:
            block = blocks.get((resend.group, resend.offset))
            if block is None:
                self.session.abandon([resend.packet_id])
                continue
            view, run = self._engine.view(block), block.meta.runs[0]
            topic = block.meta.topics[run.topic]
            grant = self.grant(topic) or Grant(resend.qos)
            payloads, tags = self._engine.encoder.payloads(self.kind, view)
            properties = run_properties(self.kind, view, run, grant)
            fit = self._engine.encoder.fitting(self.kind, topic, payloads, resend.qos, properties)
            if not fit or view.expired(run):
                self.session.abandon([resend.packet_id])
                continue
            retain = bool(run.flags & RETAIN) and (resend.retained or grant.retain_as_published)
            data = encode_qos_run(
                self.kind.version, topic, fit, resend.qos, [resend.packet_id], retain, True, properties
            )
            self.write_tagged(Encoded(data, frozenset(tags)))
