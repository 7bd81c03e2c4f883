"""Encrypted links: whoever stands between the sides reads nothing, changes nothing, and cannot talk them out of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.link.handshake import DiallerLink, ListenerLink
from lexicast.actors.link.link import Link
from lexicast.actors.link.sockets import dial, encrypts_links, listen
from lexicast.cluster.errors import AuthenticationError, LexicastError, PeerError, UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.key_agreement import KeyAgreement
from lexicast.cluster.protocol.link_proofs import DIALLER, Heard, proof
from lexicast.cluster.protocol.messages import (
    CHALLENGE,
    DELIVER,
    HELLO,
    OFFER,
    PROTOCOL_VERSION,
    PUBLISH,
    WELCOME,
)

from ...support.harness import eventually
from .test_link import CLUSTER, HELLO_OF, KEY, Pipe, Side, both

SECRET = b"what nobody else is to read"
Change = Callable[[bytes], bytes]


class Relay:
    """Somebody between the two sides, who keeps what passes, and passes on what `change` makes of it."""

    def __init__(self) -> None:
        self.seen = b""
        self.to_listener: Change = bytes
        self.to_dialler: Change = bytes
        self._tasks: list[asyncio.Task[None]] = []

    async def stand_before(self, port: int) -> asyncio.AbstractServer:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            self._tasks += [
                asyncio.create_task(self._pass(reader, far_writer, lambda: self.to_listener)),
                asyncio.create_task(self._pass(far_reader, writer, lambda: self.to_dialler)),
            ]

        return await asyncio.start_server(connected, "127.0.0.1", 0)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[], Change]
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.seen += data
                writer.write(change()(data))
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def relayed(links: str = "encrypted", beats: Beats | None = None) -> AsyncIterator[tuple[Side, Side, Relay]]:
    """(dialler's side, listener's side, who is between them)."""
    here, there, relay = Side(), Side(), Relay()
    beats = beats or Beats()
    server, real = await listen("tcp:127.0.0.1:0", KEY, CLUSTER, there.opened, {}, beats, links)
    between = await relay.stand_before(int(real.rpartition(":")[2]))
    link = await dial(f"tcp:127.0.0.1:{port_of(between)}", KEY, CLUSTER, HELLO_OF, here.opened, beats)
    await eventually(lambda: there.link is not None)
    try:
        yield here, there, relay
    finally:
        link.abort()
        await eventually(lambda: bool(here.closed and there.closed))
        await relay.end()
        between.close()
        server.close()


def port_of(server: Any) -> int:
    return int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize(("links", "reads"), [("encrypted", False), ("plain", True)])
async def test_who_stands_between_reads_nothing(links: str, reads: bool) -> None:
    async with relayed(links) as (here, there, relay):
        ours, theirs = both(here, there)
        ours.send((PUBLISH, 1, [SECRET]))
        theirs.send((DELIVER, 1, [SECRET[::-1]]))
        await eventually(lambda: bool(here.messages and there.messages))
        assert there.messages == [(PUBLISH, 1, (SECRET,))]
        assert (SECRET in relay.seen, SECRET[::-1] in relay.seen) == (reads, reads)


@pytest.mark.parametrize("direction", ["to_listener", "to_dialler"])
async def test_what_is_changed_on_the_way_ends_the_link_unread(direction: str) -> None:
    async with relayed() as (here, there, relay):
        links, sides = both(here, there), (here, there)
        sender, taker = (links[0], sides[1]) if direction == "to_listener" else (links[1], sides[0])
        sender.send((PUBLISH, 1, []))
        await eventually(lambda: bool(taker.messages))
        setattr(relay, direction, lambda data: bytes([*data[:-1], data[-1] ^ 1]))
        sender.send((PUBLISH, 2, [SECRET]))
        await eventually(lambda: bool(taker.closed))
        assert isinstance(taker.closed[0], AuthenticationError)
        assert [message[1] for message in taker.messages] == [1]


async def test_what_is_repeated_on_the_way_ends_the_link_unread() -> None:
    async with relayed() as (here, there, relay):
        ours, _ = both(here, there)
        relay.to_listener = lambda data: data + data
        ours.send((PUBLISH, 1, [SECRET]))
        await eventually(lambda: bool(there.closed))
        assert isinstance(there.closed[0], AuthenticationError)
        assert len(there.messages) <= 1


async def test_bytes_of_a_record_that_never_ends_are_no_sign_of_life() -> None:
    """Else who stands between could hold up all that is said, and nobody would notice that the link is cut."""
    async with relayed(beats=Beats(0.02, 0.3)) as (here, there, relay):
        begins = chain(b"\0\0\xff\0", repeat(0))
        relay.to_listener = lambda data: bytes([next(begins)])
        await eventually(lambda: bool(there.closed))
        assert isinstance(there.closed[0], UnavailableError)
        assert "nothing has come" in str(there.closed[0])
        assert here.link is not None


# -- lies in the handshake


def unpacked(data: bytes) -> list[tuple[Any, ...]]:
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(data)
    return list(unpacker)


def packed(*messages: tuple[Any, ...]) -> bytes:
    return b"".join(map(msgpack.packb, messages))


class Pair:
    """Both sides of a link, and whoever passes on what they say."""

    def __init__(self, encrypted: bool = True) -> None:
        self.here, self.there, self.pipes = Side(), Side(), (Pipe(), Pipe())
        self.dialler = DiallerLink(KEY, CLUSTER, HELLO_OF, self.here.opened)
        self.listener = ListenerLink(KEY, CLUSTER, self.there.opened, {"groups": 4}, encrypted=encrypted)
        self.dialler.connection_made(self.pipes[0])
        self.listener.connection_made(self.pipes[1])

    def pass_on(
        self,
        offered: Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]] = list,
        greeted: Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]] = list,
        welcomed: Change = bytes,
    ) -> None:
        """All of the handshake, changed on the way."""
        self.dialler.data_received(packed(*offered(unpacked(self.pipes[1].written.pop()))))
        if self.pipes[0].written:
            self.listener.data_received(packed(*greeted(unpacked(self.pipes[0].written.pop()))))
        if self.pipes[1].written:
            self.dialler.data_received(welcomed(self.pipes[1].written.pop()))

    def end(self) -> None:
        self.dialler.connection_lost(None)
        self.listener.connection_lost(None)


OWN = KeyAgreement(b"m" * 32)


def plainly(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """As if no encryption had been offered, or agreed to."""
    return [tuple({} if isinstance(part, dict) else part for part in message) for message in messages]


def with_own_key(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The middle's public key in the place of the side's."""
    return [
        tuple({"public": OWN.public} if isinstance(part, dict) else part for part in message) for message in messages
    ]


def renamed(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Another name and role: what a peer may do follows from them."""
    return [
        tuple({"broker": "coordinator", 7: 8}.get(part, part) if isinstance(part, str | int) else part for part in each)
        for each in messages
    ]


def other_challenge(messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Another challenge: what answers it once is not to answer it twice."""
    return [(CHALLENGE, b"N" * 32, *each[2:]) if each[0] == CHALLENGE else each for each in messages]


async def test_the_handshake_opens_both_sides_where_it_is_passed_on_as_it_is() -> None:
    pair = Pair()
    pair.pass_on()
    assert pair.here.link is pair.dialler
    assert pair.there.link is pair.listener
    assert (pair.listener.role, pair.listener.name, pair.listener.incarnation) == HELLO_OF
    assert pair.dialler.info == {"groups": 4}
    pair.end()


@pytest.mark.parametrize("offered", [plainly, with_own_key, other_challenge])
async def test_a_changed_offer_is_found_out_by_the_listener(offered: Any) -> None:
    """An offer to do without encryption above all: no side is talked out of it."""
    pair = Pair()
    pair.pass_on(offered=offered)
    assert pair.there.link is None
    assert pair.pipes[1].aborted
    assert pair.here.link is None
    pair.end()


@pytest.mark.parametrize("greeted", [plainly, with_own_key, renamed])
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_changed_hello_is_found_out_by_the_listener(greeted: Any, encrypted: bool) -> None:
    pair = Pair(encrypted)
    pair.pass_on(greeted=greeted)
    changes = encrypted or greeted is not plainly
    assert (pair.there.link is None) is changes
    assert pair.pipes[1].aborted is changes
    pair.end()


async def test_a_changed_welcome_is_found_out_by_the_dialler() -> None:
    """Also on a plain link: what the listener tells of itself is covered as well."""

    def other_groups(data: bytes) -> bytes:
        return packed(*[(kind, answer, {"groups": 5}) for kind, answer, _ in unpacked(data)])

    pair = Pair(encrypted=False)
    pair.pass_on(welcomed=other_groups)
    with pytest.raises(AuthenticationError, match="without this cluster's key"):
        await pair.dialler.wait_open()
    pair.end()
    pair = Pair()
    pair.pass_on(welcomed=lambda data: bytes([*data[:-1], data[-1] ^ 1]))
    with pytest.raises(AuthenticationError):
        await pair.dialler.wait_open()
    pair.end()


async def test_who_holds_the_key_but_does_not_encrypt_is_not_let_in() -> None:
    there = Side()
    listener, pipe = ListenerLink(KEY, CLUSTER, there.opened, {}, encrypted=True), Pipe()
    listener.connection_made(pipe)
    heard = Heard()
    for message in unpacked(pipe.written.pop()):
        heard.add(*message)
    hello: tuple[Any, ...] = (HELLO, b"n" * 32, "broker", "old", 1, {})
    heard.add(*hello)
    listener.data_received(packed((*hello, proof(KEY, DIALLER, heard))))
    assert there.link is None
    assert pipe.aborted
    with pytest.raises(PeerError, match="does not encrypt"):
        await listener.wait_open()
    listener.connection_lost(None)


async def test_what_was_said_once_opens_no_second_link() -> None:
    first = Pair()
    hello: list[bytes] = []
    first.pass_on(greeted=lambda messages: hello.append(packed(*messages)) or messages)  # type: ignore[func-returns-value]  # append gives None
    assert first.there.link is not None
    second = Pair()
    second.listener.data_received(hello[0])
    assert second.there.link is None
    assert second.pipes[1].aborted
    first.end()
    second.end()


@pytest.mark.parametrize(
    "messages",
    [
        [(OFFER, {})],
        [(WELCOME, bytes(32), {})],
        [(CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION), (WELCOME, bytes(32), {})],
        [(CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION), (CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION)],
        [(CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION), (OFFER, {"public": bytes(32)})],
        [(CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION), (OFFER, {}), (OFFER, {})],
    ],
)
async def test_a_handshake_out_of_order_is_an_error(messages: list[tuple[Any, ...]]) -> None:
    here, pipe = Side(), Pipe()
    dialler = DiallerLink(KEY, CLUSTER, HELLO_OF, here.opened)
    dialler.connection_made(pipe)
    dialler.data_received(packed(*messages))
    with pytest.raises(LexicastError):
        await dialler.wait_open()
    assert here.link is None
    dialler.connection_lost(None)


MESSAGES = st.lists(st.tuples(st.just(DELIVER), st.integers(0, 1 << 60), st.just(())), min_size=1, max_size=10)


@given(MESSAGES, st.lists(st.integers(1, 60), min_size=1))
@settings(max_examples=100)
def test_messages_are_whole_however_the_bytes_come(messages: list[Any], sizes: list[int]) -> None:
    """The welcome and what is sent right behind it too, in one read with it."""

    async def go() -> None:
        pair = Pair()

        def opened(link: Link) -> Side:
            for message in messages:
                link.send(message)
            return pair.there

        pair.listener._opened = opened
        pair.dialler.data_received(pair.pipes[1].written.pop())
        pair.listener.data_received(pair.pipes[0].written.pop())
        stream, at, turn = b"".join(pair.pipes[1].written), 0, 0
        while at < len(stream):
            size = sizes[turn % len(sizes)]
            pair.dialler.data_received(stream[at : at + size])
            at, turn = at + size, turn + 1
        assert pair.here.messages == messages
        pair.end()

    asyncio.run(go())


# -- which links are


@pytest.mark.parametrize(
    ("address", "by_itself"),
    [
        ("unix:/run/l", False),
        ("tcp:127.0.0.1:0", False),
        ("tcp:localhost:0", False),
        ("tcp:[::1]:0", False),
        ("tcp:10.0.0.1:0", True),
        ("tcp:0.0.0.0:0", True),
        ("tcp:machine-1:0", True),
        ("tcp:[fd00::1]:0", True),
    ],
)
def test_links_that_leave_the_machine_are_encrypted(address: str, by_itself: bool) -> None:
    assert encrypts_links(address, "auto") is by_itself
    assert encrypts_links(address, "encrypted")
    assert not encrypts_links(address, "plain")
