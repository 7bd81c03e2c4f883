"""Links: both sides prove that they hold the key, messages come whole and in order, or the link ends and says so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.link import link as link_module
from lexicast.actors.link.gathered_writes import GATHERED_BYTES_MAX
from lexicast.actors.link.handshake import DiallerLink, ListenerLink
from lexicast.actors.link.link import Link
from lexicast.actors.link.sockets import dial, listen
from lexicast.cluster.errors import AuthenticationError, PeerError, StaleEpochError, UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import (
    CHALLENGE,
    DELIVER,
    HELLO,
    OFFER,
    PROTOCOL_VERSION,
    PUBLISH,
    REPLY,
    REQUEST,
    WELCOME,
)

from ...support.harness import WAIT_S, eventually, silence

KEY, CLUSTER = b"k" * 32, "cluster"
HELLO_OF = ("broker", "broker-0", 7)


class Side:
    """A link's user that keeps what happens."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.messages: list[Any] = []
        self.closed: list[Exception | None] = []
        self.writable = 0

    def opened(self, link: Link) -> Side:
        self.link = link
        return self

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        self.messages.append(message)
        if message[0] == REQUEST:
            link.answer(message[1], self.work(message[2], *message[3]))

    async def work(self, method: str, *arguments: Any) -> Any:
        if method == "stale":
            raise StaleEpochError("too old")
        if method == "broken":
            raise ZeroDivisionError("a defect")
        if method == "never":
            await asyncio.get_running_loop().create_future()
        return list(arguments)

    def on_close(self, link: Link, error: Exception | None) -> None:
        self.closed.append(error)

    def on_writable(self, link: Link) -> None:
        self.writable += 1


@asynccontextmanager
async def linked(scheme: str = "unix") -> AsyncIterator[tuple[Side, Side]]:
    """(dialler's side, listener's side) of an open link."""
    here, there = Side(), Side()
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        address = f"unix:{folder}/l" if scheme == "unix" else "tcp:127.0.0.1:0"
        links = "encrypted" if scheme == "encrypted" else "auto"
        server, real = await listen(address, KEY, CLUSTER, there.opened, {"groups": 4}, links=links)
        link = await dial(real, KEY, CLUSTER, HELLO_OF, here.opened)
        await eventually(lambda: there.link is not None)
        try:
            yield here, there
        finally:
            link.abort()
            server.close()
            await eventually(lambda: bool(here.closed and there.closed))


def both(here: Side, there: Side) -> tuple[Link, Link]:
    assert here.link is not None
    assert there.link is not None
    return here.link, there.link


SCHEMES = ["unix", "tcp", "encrypted"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_both_sides_know_each_other_and_messages_come_in_order(scheme: str) -> None:
    async with linked(scheme) as (here, there):
        ours, theirs = both(here, there)
        assert (theirs.role, theirs.name, theirs.incarnation) == HELLO_OF
        assert ours.info == {"groups": 4}
        for i in range(1_000):
            ours.send((PUBLISH, i, [b"x" * (i % 50)]))
        theirs.send_packed(msgpack.packb((DELIVER, 0, ["packed before"])))
        await eventually(lambda: len(there.messages) == 1_000 and len(here.messages) == 1)
        assert [m[1] for m in there.messages] == list(range(1_000))
        assert here.messages == [(DELIVER, 0, ("packed before",))]


async def test_requests_are_answered_with_results_and_with_errors_of_their_class() -> None:
    async with linked() as (here, there):
        ours, _ = both(here, there)
        assert await ours.request("echo", 1, "two") == (1, "two")
        with pytest.raises(StaleEpochError, match="too old"):
            await ours.request("stale")


async def test_work_that_fails_in_an_unforeseen_way_is_answered() -> None:
    noted: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noted.append(context))
    async with linked() as (here, there):
        ours, _ = both(here, there)
        with pytest.raises(UnavailableError):
            await ours.request("broken")


async def test_a_call_is_done_before_what_was_sent_after_its_answer() -> None:
    async with linked() as (here, there):
        ours, theirs = both(here, there)
        seen: list[Any] = []
        ours.call(lambda error, result: seen.append((list(here.messages), error, result)), "never")
        await eventually(lambda: len(there.messages) == 1)
        theirs.send((DELIVER, 0, ["before"]))
        theirs.reply(there.messages[0][1], None, "done")
        theirs.send((DELIVER, 0, ["after"]))
        await eventually(lambda: len(here.messages) == 2)
        assert seen == [([(DELIVER, 0, ("before",))], None, "done")]


async def test_what_is_open_when_the_link_ends_fails() -> None:
    async with linked() as (here, there):
        ours, theirs = both(here, there)
        future = ours.request("never")
        called: list[Any] = []
        ours.call(lambda error, _: called.append(error), "never")
        theirs.abort()
        with pytest.raises(UnavailableError):
            await future
        assert isinstance(called[0], UnavailableError)
        assert len(here.closed) == 1
        ours.call(lambda error, _: called.append(error), "late")
        assert isinstance(called[1], UnavailableError)
        with pytest.raises(UnavailableError):
            await ours.request("late")
        ours.send((PUBLISH, 1, []))


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_full_link_says_so_and_pausing_pushes_back(scheme: str) -> None:
    async with linked(scheme) as (here, there):
        ours, theirs = both(here, there)
        theirs.pause_reading()
        while ours.writable:
            ours.send((PUBLISH, 1, [bytes(1 << 20)]))
        assert ours.write_buffer_bytes() > 0
        sent = 0
        while sent < 5:
            ours.send((PUBLISH, 2, []))
            sent += 1
        theirs.resume_reading()
        await eventually(lambda: here.writable == 1 and bool(there.messages) and there.messages[-1][1] == 2)
        assert ours.writable


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_close_sends_what_is_buffered(scheme: str) -> None:
    async with linked(scheme) as (here, there):
        ours, _ = both(here, there)
        for i in range(100):
            ours.send((PUBLISH, i, [bytes(10_000)]))
        ours.close()
        await eventually(lambda: bool(there.closed))
        assert len(there.messages) == 100


async def test_another_key_or_cluster_is_refused_on_both_sides(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        there = Side()
        server, real = await listen(f"unix:{folder}/l", KEY, CLUSTER, there.opened, {})
        # A listener tells nobody why; the dialler only sees the end.
        with pytest.raises(UnavailableError):
            await dial(real, b"x" * 32, CLUSTER, HELLO_OF, Side().opened)
        with pytest.raises(PeerError, match="another cluster"):
            await dial(real, KEY, "other", HELLO_OF, Side().opened)
        assert there.link is None
        server.close()


@asynccontextmanager
async def stranger(*messages: Any) -> AsyncIterator[str]:
    """Something that listens, says `messages` and waits for the end; its address."""
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for message in messages:
            writer.write(msgpack.packb(message))
        with suppress(ConnectionError):
            while await reader.read(1_000):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        server = await asyncio.start_unix_server(talk, f"{folder}/l")
        try:
            yield f"unix:{folder}/l"
            async with asyncio.timeout(WAIT_S):
                await ended.wait()
        finally:
            server.close()


async def test_a_listener_without_the_key_is_found_out() -> None:
    challenge = (CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION)
    async with stranger(challenge, (OFFER, {}), (WELCOME, bytes(32), {})) as address:
        with pytest.raises(AuthenticationError):
            await dial(address, KEY, CLUSTER, HELLO_OF, Side().opened)


async def test_another_protocol_version_is_named() -> None:
    async with stranger((CHALLENGE, bytes(32), CLUSTER, PROTOCOL_VERSION + 1)) as address:
        with pytest.raises(PeerError, match="upgrade one"):
            await dial(address, KEY, CLUSTER, HELLO_OF, Side().opened)


async def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(PeerError, match="handshake"):
        await dial(f"tcp:127.0.0.1:{silent.getsockname()[1]}", KEY, CLUSTER, HELLO_OF, Side().opened)
    there = Side()
    server, real = await listen("tcp:127.0.0.1:0", KEY, CLUSTER, there.opened, {})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(real.rpartition(":")[2]))
    async with asyncio.timeout(WAIT_S):
        assert len(await reader.read()) > 32  # the challenge, then the end
    writer.close()
    server.close()
    assert there.link is None


async def test_giving_up_a_dial_closes_the_socket() -> None:
    async with stranger() as address:
        task = asyncio.create_task(dial(address, KEY, CLUSTER, HELLO_OF, Side().opened))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever full."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Everything is written at once."""

    def abort(self) -> None:
        self.aborted = True


def shaken(user: Side) -> tuple[DiallerLink, Pipe]:
    """A dialler's link, its handshake done with a listener that stands beside it."""
    dialler, listener = DiallerLink(KEY, CLUSTER, HELLO_OF, user.opened), ListenerLink(KEY, CLUSTER, Side().opened, {})
    pipes = Pipe(), Pipe()
    dialler.connection_made(pipes[0])
    listener.connection_made(pipes[1])
    dialler.data_received(pipes[1].written.pop())
    listener.data_received(pipes[0].written.pop())
    dialler.data_received(pipes[1].written.pop())
    assert user.link is dialler
    return dialler, pipes[0]


async def test_requests_and_answers_of_one_turn_are_one_write_in_order() -> None:
    link, pipe = shaken(Side())
    for number in range(3):
        link.request("ask", number)
    link.reply(7, None, "answer")
    assert pipe.written == []
    await asyncio.sleep(0)
    (data,) = pipe.written
    sent = unpacked(data)
    assert [message[0] for message in sent] == [REQUEST, REQUEST, REQUEST, REPLY]
    assert [message[3] for message in sent[:3]] == [(0,), (1,), (2,)]
    await asyncio.sleep(0)
    assert len(pipe.written) == 1


async def test_what_is_sent_at_once_stands_behind_the_requests_before_it() -> None:
    link, pipe = shaken(Side())
    link.request("ask")
    link.send((DELIVER, 1, ()))
    link.request("ask again")
    assert [message[0] for message in unpacked(b"".join(pipe.written))] == [REQUEST, DELIVER]
    assert link.write_buffer_bytes() > 0
    link.close()
    assert [message[0] for message in unpacked(b"".join(pipe.written))] == [REQUEST, DELIVER, REQUEST]


async def test_what_is_gathered_goes_out_in_one_write_in_order_but_not_copied_where_it_is_large() -> None:
    link, pipe = shaken(Side())
    link.gather((DELIVER, 1, ()))
    link.gather((DELIVER, 2, ()))
    assert not pipe.written
    link.send((DELIVER, 3, ()))
    link.gather((DELIVER, 4, ()))
    link.flush()
    large = (DELIVER, 6, (b"x" * GATHERED_BYTES_MAX,))
    link.gather((DELIVER, 5, ()))
    link.gather(large)
    link.gather((DELIVER, 7, ()))
    link.send((DELIVER, 8, large[2]))
    assert [[message[1] for message in unpacked(data)] for data in pipe.written] == [[1, 2, 3], [4], [5], [6], [7], [8]]


async def test_an_answer_behind_what_was_gathered_waits_for_nobody() -> None:
    link, pipe = shaken(Side())
    link.gather((DELIVER, 1, ()))
    link.reply(1, None, "answer")
    await asyncio.sleep(0)
    assert [message[0] for message in unpacked(b"".join(pipe.written))] == [DELIVER, REPLY]
    link.flush()
    assert len(pipe.written) == 1


async def test_many_requests_of_one_turn_do_not_wait_for_its_end() -> None:
    link, pipe = shaken(Side())
    for _ in range(5):
        link.request("ask", b"x" * (GATHERED_BYTES_MAX // 4))
    assert len(unpacked(b"".join(pipe.written))) == 4


def unpacked(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(data)
    return list(unpacker)


MESSAGES = st.lists(
    st.tuples(st.just(DELIVER), st.integers(0, 1 << 60), st.lists(st.binary(max_size=30), max_size=3).map(tuple)),
    max_size=10,
)


@given(MESSAGES, st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=100)
def test_messages_are_whole_however_the_bytes_come(messages: list[Any], sizes: list[int]) -> None:
    async def go() -> None:
        user = Side()
        link, _ = shaken(user)
        data = b"".join(map(msgpack.packb, messages))
        at = turn = 0
        while at < len(data):
            size = sizes[turn % len(sizes)]
            link.data_received(data[at : at + size])
            at, turn = at + size, turn + 1
        assert user.messages == messages
        link.connection_lost(None)

    asyncio.run(go())


@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=150)
def test_garbage_ends_the_link_and_nothing_else(data: bytes) -> None:
    async def go() -> None:
        fresh = ListenerLink(KEY, CLUSTER, Side().opened, {})
        pipe = Pipe()
        fresh.connection_made(pipe)
        fresh.data_received(data)
        fresh.data_received(msgpack.packb((HELLO, bytes(32), "broker", "b", 1, {}, bytes(32))))
        assert fresh._user is None
        fresh.connection_lost(None)
        user = Side()
        link, pipe = shaken(user)
        link.data_received(data)
        link.connection_lost(None)
        assert len(user.closed) == 1

    asyncio.run(go())


async def test_a_peer_that_falls_silent_is_gone() -> None:
    """A node without power closes nothing: only that nothing comes any more tells."""
    beats = Beats(0.02, 0.3)
    here, there = Side(), Side()
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        server, real = await listen(f"unix:{folder}/l", KEY, CLUSTER, there.opened, {}, beats)
        link = await dial(real, KEY, CLUSTER, HELLO_OF, here.opened, beats)
        await eventually(lambda: there.link is not None)
        asking = link.request("never")
        await asyncio.sleep(0.5)  # longer than silence is borne: both say that they live
        assert not link.closed
        assert there.link is not None
        silence(there.link)  # the power fails
        with pytest.raises(UnavailableError, match="ended"):
            await asking
        await eventually(lambda: len(here.closed) == 1)
        assert "nothing has come" in str(here.closed[0])
        there.link.abort()
        server.close()
        await eventually(lambda: bool(there.closed))


async def test_a_peer_that_is_not_read_is_not_taken_for_gone() -> None:
    beats = Beats(0.02, 0.2)
    here, there = Side(), Side()
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        server, real = await listen(f"unix:{folder}/l", KEY, CLUSTER, there.opened, {}, beats)
        link = await dial(real, KEY, CLUSTER, HELLO_OF, here.opened, beats)
        await eventually(lambda: there.link is not None)
        link.pause_reading()
        await asyncio.sleep(0.6)  # nothing is heard here; there the pause is not noticed at all
        assert not link.closed
        link.resume_reading()
        await link.request("echo")
        link.abort()
        server.close()
        await eventually(lambda: bool(here.closed and there.closed))


async def test_a_dial_that_nobody_answers_ends() -> None:
    """A listener that takes the connection and says nothing, as a stopped process does."""
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        silent = socket.socket(socket.AF_UNIX)
        silent.bind(f"{folder}/l")
        silent.listen()
        with pytest.raises(TimeoutError, match="has not answered within"):
            await dial(f"unix:{folder}/l", KEY, CLUSTER, HELLO_OF, Side().opened, timeout_s=0.05)
        silent.close()


async def test_a_request_ends_after_its_limit_and_a_late_answer_is_dropped() -> None:
    async with linked() as (here, there):
        ours, theirs = both(here, there)
        with pytest.raises(UnavailableError, match=r"has not answered never for 0\.1 s"):
            await ours.request("never", timeout_s=0.1)
        theirs.reply(1, None, "late")
        assert await ours.request("echo", 1) == (1,)


async def test_an_answer_that_cannot_be_used_is_an_error_for_who_waits_and_ends_the_link() -> None:
    async with linked() as (here, there):
        ours, _ = both(here, there)
        told: list[Exception | None] = []

        def done(error: Exception | None, result: Any) -> None:
            told.append(error)
            if error is None:
                raise KeyError("heads")

        ours.call(done, "echo")
        await eventually(lambda: bool(here.closed))
        assert told[0] is None
        assert isinstance(told[1], PeerError)


@pytest.mark.parametrize("size", [1 << 20, 0xFFFFFFFF])
async def test_a_stranger_cannot_have_room_made_for_what_it_does_not_send(size: int) -> None:
    """msgpack makes an array of as many elements as its header says."""
    there = Side()
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        server, _ = await listen(f"unix:{folder}/l", KEY, CLUSTER, there.opened, {})
        reader, writer = await asyncio.open_unix_connection(f"{folder}/l")
        writer.write(b"\xdd" + size.to_bytes(4, "big"))
        with suppress(ConnectionError):
            await reader.read()  # the challenge, then the end
        writer.close()
        server.close()
        assert there.link is None


async def test_what_is_there_already_is_answered_as_it_is_done() -> None:
    link, pipe = shaken(Side())
    answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(4)]
    for number, answer in enumerate(answers):
        link.answer(number, answer)
    answers[2].set_result("second")
    answers[0].set_exception(StaleEpochError("too old"))
    answers[1].set_exception(ZeroDivisionError("a defect"))
    answers[3].cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    told = {message[1]: message[2:] for message in unpacked(b"".join(pipe.written))}
    assert told.keys() == {0, 1, 2}
    assert told[2] == (None, "second")
    assert told[0][0].startswith("StaleEpochError")
    assert told[1][0].startswith("UnavailableError")
