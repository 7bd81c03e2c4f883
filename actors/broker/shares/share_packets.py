"""The packets of what a member of a share is dealt, put together for one write: a turn brings parts of many blocks.

For plain clients alone, whose packets follow from payload, topic and grant; others take blocks (`mqtt.subscriber`).
"""

from __future__ import annotations

from lexicast.cluster.blocks import QOS_MASK, RETAIN

from ...mqtt.codec.encode import encode_qos0_run, split_qos_packet, split_qos_run
from ...mqtt.codec.packets import V5
from ...mqtt.codec.wire import pack_u16
from ...mqtt.session import InFlight, Session
from ..encoding import Grant, Kind, run_properties
from .dealt_blocks import DealtPart


class SharePackets:
    """See the module's docstring. `numbered`: how many packet ids they take; the session has to have room for them."""

    __slots__ = ("_heads", "_sent", "_tails", "numbered", "size_bytes")

    def __init__(self) -> None:
        self._heads: list[bytes] = []
        self._sent: list[InFlight | None] = []
        self._tails: list[bytes] = []
        self.numbered = 0
        self.size_bytes = 0

    def add(self, part: DealtPart, payloads: list[bytes], kind: Kind, grant: Grant) -> list[int]:
        """A part of a block, `payloads`: of each record of that. Returns the offsets of what goes with QoS 0, of which
        nothing will be acknowledged."""
        block, picker, numbers = part.dealt.block, part.dealt.picker, part.numbers
        runs, offsets, topics = picker.runs, picker.offsets, block.meta.topics
        version, group, done = kind.version, block.group, list[int]()
        at, count = 0, len(numbers)
        while at < count:
            number = numbers[at]
            run = runs[number]
            end = at + 1
            while end < count and runs[numbers[end]] is run:
                end += 1
            topic, flags = topics[run.topic], run.flags
            properties = run_properties(kind, run, grant, block.time_us, 0) if version == V5 else b""
            retain = grant.retain_as_published and bool(flags & RETAIN)  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            qos = min(grant.qos, flags & QOS_MASK)  # [MQTT-3.8.4-8]
            if qos and end == at + 1:  # as devices' are
                payload = payloads[number]
                head, tail = split_qos_packet(version, topic, payload, qos, retain, properties)
                self._heads.append(head)
                self._sent.append((group, offsets[number], qos, True))
                self._tails.append(tail)
                self.numbered += 1
                self.size_bytes += len(topic) + len(payload)
                at = end
                continue
            some = numbers[at:end]
            at = end
            fit = [payloads[each] for each in some]
            self.size_bytes += len(fit) * len(topic) + sum(map(len, fit))
            if qos == 0:
                self._heads.append(encode_qos0_run(version, topic, fit, retain, properties))
                self._sent.append(None)
                self._tails.append(b"")
                done += [offsets[each] for each in some]
            else:
                heads, tails = split_qos_run(version, topic, fit, qos, retain, properties)
                self._heads += heads
                self._sent += [(group, offsets[each], qos, True) for each in some]
                self._tails += tails
                self.numbered += len(fit)
        return done

    def take(self, session: Session) -> tuple[bytes, list[int]]:
        """What was added as bytes, and the packet ids that it has: it is in flight."""
        heads, sent, tails = self._heads, self._sent, self._tails
        self._heads, self._sent, self._tails = [], [], []
        numbered, self.numbered, self.size_bytes = self.numbered, 0, 0
        if not numbered:
            return b"".join(heads), []
        ids = session.send_all([each for each in sent if each is not None])
        between = list(map(pack_u16, ids))
        if numbered < len(sent):
            following = iter(between)
            between = [b"" if each is None else next(following) for each in sent]
        parts = [b""] * (3 * len(sent))
        parts[::3], parts[1::3], parts[2::3] = heads, between, tails
        return b"".join(parts), ids
