"""What sessions without packet ids get of a block, publication by publication: made once, put together for each.

Conditions give nearly every subscriber a part of the block of its own, but the parts are made of the same packets. So a
publication's packet is made once for each kind of session and grant, and a part is these joined: 1.5 us instead of 25
for a block and its encoding. Python clients' links take blocks, so there those who get the same publications share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lexicast.cluster.blocks import FIRST_DICTIONARY, RETAIN

from ...mqtt.codec.encode import encode_qos0_run
from ...mqtt.codec.packets import V5
from ..dictionaries.tagging import Instead, SentBytes, SentRuns
from ..encoding import LINK, EncodedBlock, Encoder, Grant, Kind, run_properties
from .choosing import BlockChoice

ALIKE_KEPT: Final = 4_096
_NO_ALIASES: Final[frozenset[int]] = frozenset()


class Alike:
    """What decides the bytes of subscribers at QoS 0. `grant`: of QoS 0, and nothing is left of it to be looked at."""

    __slots__ = ("grant", "kind")

    def __init__(self, kind: Kind, grant: Grant) -> None:
        self.kind = kind
        self.grant = grant


@lru_cache(maxsize=ALIKE_KEPT)
def alike_of(kind: Kind, grant: Grant) -> Alike:
    """The same object for the same, as long as it is kept: looked up by identity, a delivery each."""
    return Alike(kind, grant)


# The dictionary that a payload is compressed with, its bytes with it and without one, and the family that has a newer.
RecordSizes = tuple[int, int, int, bytes | None]


class PartForms:
    """`encoding.Forms` of some records."""

    __slots__ = ("_made", "_packets", "_records")

    def __init__(self, packets: RecordPackets, records: tuple[int, ...]) -> None:
        self._packets = packets
        self._records = records
        self._made: dict[Instead, EncodedBlock] = {}

    def form(self, instead: Instead) -> EncodedBlock:
        """The form in which other dictionaries, or none, take the place of some."""
        made = self._made.get(instead)
        if made is None:
            made = self._made[instead] = self._packets.in_form(self._records, instead)
        return made

    def measure(self, instead: Instead) -> int:
        """Make a form, and so find out what dictionaries save on it; how many bytes of it need none."""
        sent = self.form(instead).sent
        return 0 if sent is None else sent.plain_bytes


class RecordPackets:
    """See the module's docstring."""

    __slots__ = ("_choice", "_encoder", "_grant", "_kind", "_packets", "_parts", "_sizes", "_tags")

    def __init__(self, choice: BlockChoice, encoder: Encoder, alike: Alike) -> None:
        self._choice = choice
        self._encoder = encoder
        self._kind = alike.kind
        self._grant = alike.grant
        # By record: its packet, empty where nothing is sent of it, None as long as nobody gets it.
        self._packets: list[bytes | None] = [None] * len(choice.runs)
        self._parts: dict[tuple[int, ...], EncodedBlock] = {}
        self._tags: list[int] = []
        # By record, for dictionary-aware sessions: what of it they have to account.
        self._sizes: list[RecordSizes] = []

    def encoded(self, records: list[int]) -> EncodedBlock:
        """These records, by number in ascending order, one or more."""
        if self._kind.version == LINK:
            return self._block(tuple(records))
        packets = self._packets
        parts = [self._packet(record) if (made := packets[record]) is None else made for record in records]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        sent = len(parts) if all(parts) else len([part for part in parts if part])
        if not (self._kind.aware and data):
            return EncodedBlock(data, _NO_ALIASES, sent)
        account = self._account(records)
        other = PartForms(self, tuple(records)) if account.named else None
        aliases = frozenset([self._tags[record] for record in records])
        return EncodedBlock(data, aliases, sent, (), account, other)

    def _account(self, records: list[int]) -> SentBytes:
        if not self._sizes:
            form, at = self._encoder.form(self._choice.view), 0
            for index, run in enumerate(self._choice.view.block.meta.runs):
                end = at + run.count
                used, outdated = form.used[index], form.outdated[index]
                for payload, tag in zip(form.payloads[at:end], form.tags[at:end], strict=True):
                    size = len(payload or b"")
                    with_bytes = size if tag >= FIRST_DICTIONARY else 0
                    self._sizes.append((used, with_bytes, size - with_bytes, outdated))
                at = end
        runs = SentRuns()
        for record in records:
            runs.add(*self._sizes[record])
        return runs.sent(self._encoder.savings)

    def in_form(self, records: tuple[int, ...], instead: Instead) -> EncodedBlock:
        """These records for links that lack dictionaries of the first form."""
        view, grants = self._choice.of_picks([(record, (self._grant,)) for record in records])
        return self._encoder.shared(self._kind, view, grants, (), instead)

    def _block(self, records: tuple[int, ...]) -> EncodedBlock:
        encoded = self._parts.get(records)
        if encoded is None:
            view, grants = self._choice.of_picks([(record, (self._grant,)) for record in records])
            encoded = self._parts[records] = self._encoder.shared(self._kind, view, grants)
        return encoded

    def _packet(self, record: int) -> bytes:
        packet = self._packets[record] = self._made(record)
        return packet

    def _made(self, record: int) -> bytes:
        view, kind, grant = self._choice.view, self._kind, self._grant
        run = self._choice.runs[record]
        if view.expired(run):
            return b""
        payloads, self._tags = self._encoder.payloads(kind, view)
        block = view.block
        topic = block.meta.topics[run.topic]
        properties = run_properties(kind, run, grant, block.time_us, view.now_us) if kind.version == V5 else b""
        fit = self._encoder.fitting(kind, topic, [payloads[record]], 0, properties)
        retain = grant.retain_as_published and bool(run.flags & RETAIN)  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        return encode_qos0_run(kind.version, topic, fit, retain, properties) if fit else b""
