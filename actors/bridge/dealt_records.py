"""What a bridge has been dealt, in columns: a message of most blocks is never an object of its own. Pure.

A block goes in as it is stored where nothing of it is compressed, expires or has properties, as most are that come in
turns of a hundred blocks of few; of all others their messages do.
"""

from __future__ import annotations

from collections.abc import Sequence

from lexicast.cluster.blocks import RAW, RETAIN, Block
from lexicast.cluster.errors import PeerError

from ..client.messages import Message
from .dealt_positions import Place


class DealtRecords:
    """Publications of one of the bridge's topics (`number`), in order. A column each: `places`, where they are from;
    `topics`, `flags` (see `cluster.blocks`), `payloads`; `messages`: of those that did not go in as a block's."""

    __slots__ = ("flags", "messages", "number", "payloads", "places", "topics")

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: list[Place] = []
        self.topics: list[bytes] = []
        self.flags: list[int] = []
        self.payloads: list[bytes] = []
        self.messages: list[Message | None] = []

    def __len__(self) -> int:
        return len(self.places)

    def add_block(self, block: Block) -> bool:
        """All of a block; whether it could be added as it is stored. Where it cannot be read it is not."""
        try:
            names, runs, _, _, _, _ = block.meta
            payloads = block.payloads()
        except PeerError:
            return False
        for _, _, _, encoding, expiry_ms, properties, _, _ in runs:
            if encoding != RAW or expiry_ms or properties:
                return False
        number, group, offset = self.number, block.group, block.first
        places, topics, flags = self.places, self.topics, self.flags
        for skip, topic, its_flags, _, _, _, _, count in runs:
            offset += skip
            name = names[topic]
            for _ in range(count):
                places.append((number, group, offset))
                topics.append(name)
                flags.append(its_flags)
                offset += 1
        self.payloads += payloads
        self.messages += [None] * len(payloads)
        return True

    def add_messages(self, messages: Sequence[Message]) -> None:
        """These."""
        number = self.number
        self.places += [(number, each.position[0], each.position[2]) for each in messages]
        self.topics += [each.topic.encode() for each in messages]
        self.flags += [each.qos | (RETAIN if each.retain else 0) for each in messages]
        self.payloads += [each.payload for each in messages]
        self.messages += messages

    def those(self, wanted: Sequence[bool]) -> DealtRecords:
        """Those that are wanted (a flag a record)."""
        some = DealtRecords(self.number)
        for at, is_wanted in enumerate(wanted):
            if is_wanted:
                some.places.append(self.places[at])
                some.topics.append(self.topics[at])
                some.flags.append(self.flags[at])
                some.payloads.append(self.payloads[at])
                some.messages.append(self.messages[at])
        return some
