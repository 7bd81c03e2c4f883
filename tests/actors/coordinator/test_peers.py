"""What a coordinator sends its brokers in a turn."""

from __future__ import annotations

from typing import Any, cast

from lexicast.actors.coordinator.peers import DELIVER_BYTES_MAX, LINK_BACKLOG_BYTES_MAX, BrokerPeer
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta

BODY = 256 * 1024


class FakeLink:
    """Takes everything and sends nothing."""

    def __init__(self) -> None:
        self.messages: list[list[Any]] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        self.messages.append(message[2])

    def flush(self) -> None:
        """All is taken at once."""

    def write_buffer_bytes(self) -> int:
        return sum([len(wire[-1]) for wires in self.messages for wire in wires])


def block(group: int, offset: int) -> Block:
    meta = Meta((b"t",), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ())
    lengths = BODY.to_bytes(4, "little")
    return Block(group, 1, offset, offset, 0, PUBLICATIONS, pack_meta(meta), lengths, bytes(BODY), meta)


def test_what_a_commit_sets_free_at_once_goes_out_in_messages_and_no_further_than_the_link_has_room() -> None:
    """One message of 64 MiB was in memory four times over, and a turn of the broker's that long."""
    link = FakeLink()
    peer = BrokerPeer("broker-0", 1, cast(Any, link))
    count = 2 * LINK_BACKLOG_BYTES_MAX // BODY
    for offset in range(count):
        peer.offer(block(offset % 2, offset // 2))
    peer.flush()
    sizes = [sum([len(wire[-1]) for wire in wires]) for wires in link.messages]
    assert max(sizes) <= DELIVER_BYTES_MAX + BODY
    assert sum(sizes) <= LINK_BACKLOG_BYTES_MAX + DELIVER_BYTES_MAX + BODY
    sent = [wire[2] for wires in link.messages for wire in wires if wire[0] == 0]
    assert sent == list(range(len(sent)))
    # What did not go out is where it goes on.
    assert peer.behind[0] == len(sent)
    assert sum(sizes) // BODY == peer.behind[0] + peer.behind[1]


def test_a_turns_blocks_are_one_message() -> None:
    link = FakeLink()
    peer = BrokerPeer("broker-0", 1, cast(Any, link))
    for offset in range(3):
        peer.offer(block(0, offset))
    peer.flush()
    assert [len(wires) for wires in link.messages] == [3]
    assert not peer.behind
