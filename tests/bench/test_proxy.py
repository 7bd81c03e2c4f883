"""The counting proxy: bytes pass unchanged and are counted; delay, rate, half-close, cuts and bounds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lexicast.bench.stage import proxy as proxies
from lexicast.bench.stage.proxy import Proxy
from lexicast.bench.stage.servers import spawn_child
from lexicast.cluster.errors import UnavailableError, UsageError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends everything back; ends when the client has ended."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """A server on a free port; at the end its handlers are over and their sockets closed."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            await closed(writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Closes a stream and waits until its socket is closed."""
    writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await closed(writer)


@asynccontextmanager
async def proxied(
    handler: Handler, *, delay_s: float = 0.0, bytes_per_s: float | None = None
) -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server, a proxy before it, and one client through the proxy."""
    async with (
        serving(handler) as port,
        Proxy("127.0.0.1", port, delay_s=delay_s, bytes_per_s=bytes_per_s) as proxy,
        connected(proxy.port) as (reader, writer),
    ):
        yield proxy, reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, in order or by a reset."""
    try:
        return await reader.read(-1)
    except ConnectionResetError:
        return b""


async def test_bytes_pass_unchanged_and_are_counted_each_way() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000_000)
        writer.write(b"ok" * 100)
        await writer.drain()

    async with proxied(answer) as (proxy, reader, writer):
        writer.write(bytes(range(250)) * 4_000)
        assert await reader.read(-1) == b"ok" * 100
        assert (proxy.counters.to_server, proxy.counters.to_client, proxy.counters.connections) == (1_000_000, 200, 1)


@pytest.mark.parametrize("link", [{}, {"delay_s": 0.005}, {"bytes_per_s": 2_000_000.0}], ids=str)
async def test_half_close_follows_the_bytes_before_it(link: dict[str, Any]) -> None:
    sent = b"".join(b"%06d" % number for number in range(20_000))
    async with proxied(echo, **link) as (_, reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent


async def test_bytes_sent_before_the_server_is_connected_are_not_lost() -> None:
    async with proxied(echo) as (proxy, _, _):
        for _ in range(50):
            async with connected(proxy.port) as (reader, writer):
                writer.write(b"early")
                writer.write_eof()
                assert await reader.read(-1) == b"early"


async def test_what_a_server_says_first_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await echo(reader, writer)

    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def late(*arguments: Any, **more: Any) -> Any:
        made = await connect(*arguments, **more)
        await asyncio.sleep(0.05)  # the greeting comes before the proxy hears that it is connected
        return made

    monkeypatch.setattr(loop, "create_connection", late)
    async with serving(greet) as port, Proxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        async with asyncio.timeout(5):
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"and back")
            assert await reader.readexactly(8) == b"and back"
        await closed(writer)


async def test_delay_holds_each_way() -> None:
    clock = asyncio.get_running_loop().time
    async with proxied(echo, delay_s=0.05) as (_, reader, writer):
        started = clock()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        assert clock() - started >= 0.098


async def test_rate_is_never_exceeded() -> None:
    clock = asyncio.get_running_loop().time

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(300_000)
        writer.write(b"!")
        await writer.drain()

    async with proxied(sink, bytes_per_s=1_000_000) as (_, reader, writer):
        started = clock()
        writer.write(bytes(300_000))
        await reader.readexactly(1)
        # 0.3 s for the bytes, less the burst that may pass at once.
        assert clock() - started >= 0.3 - 2 * proxies.BURST_S


async def test_link_can_change_while_it_runs() -> None:
    clock = asyncio.get_running_loop().time
    async with proxied(echo) as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.set_link(delay_s=0.05)
        started = clock()
        writer.write(b"b")
        await reader.readexactly(1)
        assert clock() - started >= 0.098


async def write_mebibytes(writer: asyncio.StreamWriter, count: int) -> None:
    """Writes; raises TimeoutError when half a second takes nothing away."""
    for _ in range(count // 4):
        writer.write(bytes(4 * 2**20))
        await asyncio.wait_for(writer.drain(), 0.5)


async def test_receiver_that_does_not_read_stops_the_sender() -> None:
    let_go = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()

    async with proxied(wait, delay_s=0.001) as (proxy, _, writer):
        # The kernel's buffers fill (tens of MiB on loopback), the proxy's queue fills, then nothing more is read.
        with pytest.raises(TimeoutError):
            await write_mebibytes(writer, 256)
        assert 0 < proxy.counters.to_server < 256 * 2**20
        let_go.set()


async def test_cut_resets_both_sides_and_new_connections_work() -> None:
    ended = asyncio.Event()

    async def notice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await echo(reader, writer)
        finally:
            ended.set()

    async with proxied(notice) as (proxy, reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        assert proxy.cut() == 1
        assert await rest(reader) == b""
        await asyncio.wait_for(ended.wait(), 5)
        async with connected(proxy.port) as (again, other):
            other.write(b"y")
            assert await again.readexactly(1) == b"y"


async def test_client_of_a_dead_server_is_disconnected() -> None:
    async with serving(echo) as port:
        pass
    async with Proxy("127.0.0.1", port) as proxy, connected(proxy.port) as (reader, _):
        assert await asyncio.wait_for(rest(reader), 5) == b""


async def test_taken_port_is_said() -> None:
    async with Proxy("127.0.0.1", 9) as proxy:
        with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{proxy.port}"):
            await Proxy("127.0.0.1", 9).start(listen_port=proxy.port)


@pytest.mark.parametrize("link", [{"delay_s": -0.1}, {"bytes_per_s": 0.0}])
def test_impossible_links_are_refused(link: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="impossible"):
        Proxy("127.0.0.1", 9, **link)


async def test_command_counts_into_its_file(tmp_path: Path) -> None:
    counters = tmp_path / "counters.json"
    async with serving(echo) as port:
        command = [
            sys.executable,
            "-m",
            "lexicast.bench.stage.proxy",
            "--to",
            f"127.0.0.1:{port}",
            "--counters",
            counters,
        ]
        process = spawn_child([str(part) for part in command], tmp_path / "log", {"PYTHONPATH": ":".join(sys.path)})
        try:
            await asyncio.to_thread(appears, counters, process, tmp_path / "log")
            async with connected(json.loads(counters.read_text())["port"]) as (reader, writer):
                writer.write(b"12345")
                assert await reader.readexactly(5) == b"12345"
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, 10) == 0
        finally:
            process.kill()
            process.wait()
    told = json.loads(counters.read_text())
    assert (told["to_server"], told["to_client"], told["connections"]) == (5, 5, 1)


def appears(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for a file that a process writes when it serves."""
    deadline = time.monotonic() + 20
    while not file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
