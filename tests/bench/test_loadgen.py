"""The load generator counts exactly, and loss, repeats and disorder cannot pass it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from lexicast.bench import connections, latency
from lexicast.bench.peers import fleet_load, loadgen, paced_load, toy
from lexicast.bench.peers.fleet_load import FleetLoad, OpenFleet, OpenPairs, OpenTopics
from lexicast.bench.peers.loadgen import (
    BLOCK,
    AcknowledgingSubscriber,
    DeliveryError,
    Load,
    LoadPublisher,
    LoadSubscriber,
    OpenLoad,
    best_window,
    sequence_payload,
)
from lexicast.bench.peers.session_opening import SessionSpec, close_all, open_sessions
from lexicast.bench.peers.wire import Layout, MqttWire, NatsWire, RefusedError, Wire
from lexicast.bench.stage.servers import Address
from lexicast.cluster.errors import PeerError, UnavailableError, UsageError

from ..support.wires import WIRES

SIZE = 40


def deliveries(wire: Wire, numbers: list[int], qos: int = 0) -> tuple[bytes, Layout]:
    """Packets as a broker would deliver them; for NATS a MSG with a subscription id."""

    def one(number: int) -> bytes:
        if isinstance(wire, NatsWire):
            return b"MSG bench.t 1 %d\r\n%b\r\n" % (SIZE, sequence_payload(number, SIZE))
        return wire.publish("bench/t", sequence_payload(number, SIZE), qos, number % 60_000 + 1)

    return b"".join(map(one, numbers)), wire.delivery_layout(one(0), SIZE)


def feed(subscriber: LoadSubscriber, sender: socket.socket, data: bytes, seed: int) -> None:
    """Sends `data` in pieces of random lengths, each read by itself."""
    chance, at = random.Random(seed), 0
    while at < len(data):
        piece = data[at : at + chance.choice([1, 2, 30, 56, 57, 500, 9_000])]
        sender.sendall(piece)
        subscriber.on_readable()
        at += len(piece)


# The publisher


@pytest.mark.parametrize("wire", WIRES)
def test_published_packets_are_numbered_across_blocks(
    wire: Wire, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadgen, "BLOCK", 256)
    publisher = LoadPublisher(pair[0], wire, "bench/t", SIZE, 0)
    count, received = 256 * 260 + 17, b""  # over 65,536: three bytes of the number change
    expected = len(wire.publish("bench/t", sequence_payload(0, SIZE), 0)) * count
    while len(received) < expected:
        publisher.send_up_to(count)
        received += pair[1].recv(1 << 20)
    assert publisher.sent == count
    assert received == b"".join(wire.publish("bench/t", sequence_payload(number, SIZE), 0) for number in range(count))


def test_publisher_counts_a_message_as_sent_with_its_first_byte(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    publisher = LoadPublisher(pair[0], MqttWire(), "bench/t", 3_000, 0)
    publisher.send_up_to(BLOCK)
    assert publisher.blocked
    assert 0 < publisher.sent < BLOCK
    started = publisher.sent
    received = 0
    while received < started * len(MqttWire().publish("bench/t", bytes(3_000), 0)):
        received += len(pair[1].recv(1 << 20))
        publisher.send_up_to(started)
    assert not publisher.blocked
    assert publisher.sent == started


def test_acknowledgements_are_counted_in_any_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    publisher = LoadPublisher(pair[0], MqttWire(), "bench/t", SIZE, 1)
    stream = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 300))
    for start in range(0, len(stream), 7):
        publisher.on_acknowledgements(stream[start : start + 7])
        assert publisher.acknowledged == min(len(stream), start + 7) // 4
    with pytest.raises(DeliveryError, match="expected PUBACKs"):
        publisher.on_acknowledgements(b"\x50\x02\0\1")


# The subscriber


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("verify", [False, True])
def test_subscriber_counts_reads_of_any_length(
    wire: Wire, verify: bool, pair: tuple[socket.socket, socket.socket]
) -> None:
    data, layout = deliveries(wire, list(range(2_000)))
    subscriber = LoadSubscriber(pair[0], "s", layout, 0, verify)
    feed(subscriber, pair[1], data, seed=1)
    assert subscriber.received == 2_000


def faults(count: int) -> list[tuple[str, list[int]]]:
    numbers = list(range(count))
    return [
        ("lost", numbers[:700] + numbers[701:]),
        ("repeated", numbers[:700] + numbers[699:]),
        ("repeated", numbers[:700] + numbers[200:]),
    ]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("what", "numbers"), faults(1_000))
def test_subscriber_notices_a_fault_without_verifying(
    wire: Wire, what: str, numbers: list[int], pair: tuple[socket.socket, socket.socket]
) -> None:
    data, layout = deliveries(wire, numbers)
    with pytest.raises(DeliveryError, match=what):
        feed(LoadSubscriber(pair[0], "s", layout, 0, False), pair[1], data, seed=2)


def test_only_verifying_sees_two_messages_swapped_within_a_read(pair: tuple[socket.socket, socket.socket]) -> None:
    data, layout = deliveries(MqttWire(), [0, 1, 3, 2, 4])
    pair[1].sendall(data)
    LoadSubscriber(pair[0], "s", layout, 0, False).on_readable()
    pair[1].sendall(data)
    with pytest.raises(DeliveryError, match="not consecutive"):
        LoadSubscriber(pair[0], "s", layout, 0, True).on_readable()


@pytest.mark.parametrize("wire", WIRES)
def test_subscriber_notices_foreign_bytes(wire: Wire, pair: tuple[socket.socket, socket.socket]) -> None:
    data, layout = deliveries(wire, list(range(100)))
    pair[1].sendall(data + b"\xd0\x00" + data)
    with pytest.raises(DeliveryError, match="no delivery where number 199"):
        LoadSubscriber(pair[0], "s", layout, 0, False).on_readable()


def test_closed_connection_is_said(pair: tuple[socket.socket, socket.socket]) -> None:
    _, layout = deliveries(MqttWire(), [0])
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(DeliveryError, match="closed s after 5 messages"):
        LoadSubscriber(pair[0], "s", layout, 5, False).on_readable()


@pytest.mark.parametrize("verify", [False, True])
def test_each_qos_1_delivery_is_acknowledged_by_its_id(verify: bool, pair: tuple[socket.socket, socket.socket]) -> None:
    data, layout = deliveries(MqttWire(), list(range(900)), qos=1)
    subscriber = AcknowledgingSubscriber(pair[0], "s", layout, 0, verify)
    feed(subscriber, pair[1], data, seed=3)
    wanted = b"".join(b"\x40\x02" + (number + 1).to_bytes(2, "big") for number in range(900))
    assert pair[1].recv(1 << 20) == wanted
    assert subscriber.received == 900


def test_lowered_qos_is_said(pair: tuple[socket.socket, socket.socket]) -> None:
    data, layout = deliveries(MqttWire(), [0], qos=0)
    pair[1].sendall(data)
    with pytest.raises(DeliveryError, match="lowered"):
        AcknowledgingSubscriber(pair[0], "s", layout, 0, False).on_readable()


# Against brokers, whole and broken


class DropsOne(toy.ToyConnection):
    """Never delivers message number 300."""

    def deliver(self, transport: asyncio.WriteTransport, run: bytes, length: int) -> None:
        packets = [run[at : at + length] for at in range(0, len(run), length)]
        transport.write(b"".join(packet for packet in packets if sequence_payload(300, SIZE) not in packet))


class RefusesClients(toy.ToyConnection):
    """Answers CONNECT with "not authorised" (MQTT 3.1.1, 3.2.2.3)."""

    def data_received(self, data: bytes) -> None:
        self._reply(b"\x20\x02\0\5")


class Silent(toy.ToyConnection):
    """Answers nothing."""

    def data_received(self, data: bytes) -> None:
        pass


class HangsUp(toy.ToyConnection):
    """Closes a subscriber's connection instead of delivering message 300."""

    def deliver(self, transport: asyncio.WriteTransport, run: bytes, length: int) -> None:
        if sequence_payload(300, SIZE) in run:
            transport.close()
        else:
            transport.write(run)


@contextlib.contextmanager
def broker(kind: type[toy.ToyConnection]) -> Iterator[Address]:
    """A broker of that kind in a thread of its own."""
    loop = asyncio.new_event_loop()
    topics: dict[bytes, list[tuple[asyncio.WriteTransport, int]]] = {}
    made: list[toy.ToyConnection] = []

    def make() -> toy.ToyConnection:
        made.append(kind(topics))
        return made[-1]

    async def end() -> None:
        server.close()
        for connection in made:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    server = loop.run_until_complete(loop.create_server(make, "127.0.0.1", 0, backlog=512))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def opened(address: Address, load: Load, version: int = 4) -> Iterator[OpenLoad]:
    made = OpenLoad(address, MqttWire(version), load)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("subscribers", "qos"), [(1, 0), (7, 0), (1, 1)])
@pytest.mark.parametrize("verify", [False, True])
def test_everything_sent_is_delivered_and_runs_follow_each_other(subscribers: int, qos: int, verify: bool) -> None:
    load = Load("t", subscribers, SIZE, qos, verify)
    with broker(toy.ToyConnection) as address, opened(address, load) as running:
        for count in (1, 5_000, 20_000):
            result = running.run(60, 300, messages_max=count)
            assert (result.sent, result.deliveries, result.lost) == (count, count * subscribers, 0)
        assert running.publisher.sent == 25_002  # the first message opened the load
        if qos:
            assert running.publisher.acknowledged == 25_002


def test_window_bounds_what_is_ahead_of_the_slowest_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    with broker(toy.ToyConnection) as address, opened(address, Load("t", 3, SIZE)) as running:
        send = running.publisher.send_up_to

        def watched(limit: int) -> None:
            ahead.append(limit - min(subscriber.received for subscriber in running.subscribers))
            send(limit)

        monkeypatch.setattr(running.publisher, "send_up_to", watched)
        assert running.run(60, 64, messages_max=3_000).lost == 0
    assert 32 < max(ahead) <= 64


def test_dropped_message_is_noticed_in_the_middle() -> None:
    with (
        broker(DropsOne) as address,
        opened(address, Load("t", 2, SIZE)) as running,
        pytest.raises(DeliveryError, match=r"message \d+ stands where \d+ should be: 1 lost"),
    ):
        running.run(60, 50, messages_max=1_000)


def test_dropped_last_message_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen, "LOST_AFTER_S", 0.4)
    with broker(DropsOne) as address, opened(address, Load("t", 2, SIZE)) as running:
        result = running.run(60, 50, messages_max=300)  # 0 opened the load, so 300 is the last one
        assert (result.sent, result.deliveries, result.lost) == (300, 598, 2)


FLEETS = [
    pytest.param(OpenFleet, 0, id="to one subscriber"),
    pytest.param(OpenFleet, 1, id="to one subscriber, QoS 1"),
    pytest.param(OpenPairs, 0, id="pairs"),
    pytest.param(OpenTopics, 0, id="topics in turn"),
]
OpenOfAFleet = Callable[[Address, Wire, FleetLoad], OpenFleet | OpenLoad]


@pytest.mark.parametrize(("kind", "qos"), FLEETS)
def test_everything_that_a_fleet_sends_is_delivered(kind: OpenOfAFleet, qos: int) -> None:
    with broker(toy.ToyConnection) as address:
        running = kind(address, MqttWire(), FleetLoad("f", 5, SIZE, qos))
        try:
            for count in (1, 2_000, 13):
                result = running.run(60, 20, messages_max=count)
                assert (result.sent, result.deliveries, result.lost) == (count, count, 0)
        finally:
            running.close()


@pytest.mark.parametrize(("kind", "qos"), FLEETS)
def test_message_of_a_fleet_that_is_dropped_is_noticed(
    kind: OpenOfAFleet, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_load, "LOST_AFTER_S", 0.4)
    monkeypatch.setattr(loadgen, "LOST_AFTER_S", 0.4)
    with broker(DropsOne) as address:
        running = kind(address, MqttWire(), FleetLoad("f", 5, SIZE, qos))
        try:
            with pytest.raises(DeliveryError, match=r"message \d+ stands where \d+ should be: 1 lost"):
                running.run(60, 20, messages_max=2_000)  # of each topic, number 300 is missing
        finally:
            running.close()


def test_last_message_of_a_fleet_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_load, "LOST_AFTER_S", 0.4)
    with broker(DropsOne) as address:
        running = OpenFleet(address, MqttWire(), FleetLoad("f", 1, SIZE))
        try:
            result = running.run(60, 50, messages_max=300)  # 0 opened the load
            assert (result.sent, result.deliveries, result.lost) == (300, 299, 1)
        finally:
            running.close()


def test_hung_up_subscriber_is_noticed() -> None:
    with (
        broker(HangsUp) as address,
        opened(address, Load("t", 2, SIZE)) as running,
        pytest.raises(DeliveryError, match="closed bench-t-"),
    ):
        running.run(60, 50, messages_max=1_000)


def test_silent_broker_fails_within_the_stated_time() -> None:
    with broker(Silent) as address, pytest.raises(UnavailableError, match="only 0 of 1 sessions were open after 0 s"):
        open_sessions(address, MqttWire(), [SessionSpec("a", "t")], timeout_s=0.2)


def test_refused_client_is_named() -> None:
    with broker(RefusesClients) as address, pytest.raises(RefusedError, match=r"session a \(number 1\).*0x05"):
        open_sessions(address, MqttWire(), [SessionSpec("a", "t")])


def test_nobody_listening_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"cannot connect to 127.0.0.1:{port}"):
            open_sessions(Address("127.0.0.1", port), MqttWire(), [SessionSpec("a")])


def test_best_window_leaves_out_what_takes_too_long_to_deliver() -> None:
    with broker(toy.ToyConnection) as address, opened(address, Load("t", 1, SIZE)) as running:
        window, rates = best_window(running, 1, (10, 100, 10**9), 0.05, turnover_s=1.0)
    assert list(rates) == [10, 100]
    assert rates[window] == max(rates.values())


def test_paced_latency_has_one_value_a_message() -> None:
    with broker(toy.ToyConnection) as address, opened(address, Load("t", 1, SIZE)) as running:
        for _ in range(2):
            run = paced_load.paced(running, 1_000, 0.2)
            assert len(run.latencies_ns) == len(run.lateness_ns) == 200
            assert min(run.latencies_ns) > 0
            assert min(run.lateness_ns) >= 0


def test_paced_run_notices_a_lost_message() -> None:
    with (
        broker(DropsOne) as address,
        opened(address, Load("t", 1, SIZE)) as running,
        pytest.raises(DeliveryError, match="1 lost"),
    ):
        paced_load.paced(running, 5_000, 0.2)


def test_fast_schedule_is_kept_in_writes_of_a_tick() -> None:
    with broker(toy.ToyConnection) as address, opened(address, Load("t", 1, SIZE)) as running:
        run = paced_load.paced(running, 50_000, 0.1)
    assert len(run.latencies_ns) == len(run.lateness_ns) == 5_000
    assert min(run.latencies_ns) > 0
    assert min(run.lateness_ns) >= 0
    assert run.delivered_per_s > 0


def test_silence_while_messages_are_missing_ends_a_paced_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen, "LOST_AFTER_S", 0.2)
    with (
        broker(DropsOne) as address,
        opened(address, Load("t", 1, SIZE)) as running,
        pytest.raises(DeliveryError, match="1 of 300 messages did not arrive"),
    ):
        paced_load.paced(running, 10_000, 0.03)  # 0 opened the load, so 300 is the last one


def test_times_are_spread_over_the_messages_between_two_moments() -> None:
    moments = paced_load.Moments()
    for told in ((10, 2), (11, 2), (20, 5)):
        moments.add(*told)
    assert moments.spread().tolist() == [10, 10, 20, 20, 20]


def test_each_message_of_a_run_with_a_window_is_timed() -> None:
    with broker(toy.ToyConnection) as address:
        running = paced_load.OpenTimed(address, MqttWire(), Load("t", 1, SIZE))
        try:
            for count in (1, 5_000, 20_000):
                assert running.run(60, 300, messages_max=count).lost == 0
                latencies = running.latencies_ns()
                assert len(latencies) == count
                assert min(latencies) > 0
        finally:
            running.close()


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.999, 100.0)])
def test_percentiles_are_nearest_rank(fraction: float, expected: float) -> None:
    assert latency.percentile_ms([value * 1_000_000 for value in range(100, 0, -1)], fraction) == expected


def test_percentile_of_nothing_is_none() -> None:
    assert latency.percentile_ms([], 0.5) is None


def test_own_message_reaches_each_connection() -> None:
    specs = [SessionSpec(f"c{number}", connections.own_topic(number)) for number in range(120)]
    with broker(toy.ToyConnection) as address:
        sockets = open_sessions(address, MqttWire(), [*specs, SessionSpec("publisher")], in_flight=10)
        try:
            connections.deliver_to_each(MqttWire(), sockets[-1], sockets[:-1])
        finally:
            close_all(sockets, MqttWire().goodbye())


def test_connection_without_its_message_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOST_AFTER_S", 0.3)
    specs = [SessionSpec(f"c{number}", connections.own_topic(number + number // 4)) for number in range(6)]
    with broker(toy.ToyConnection) as address:
        sockets = open_sessions(address, MqttWire(), [*specs, SessionSpec("publisher")])
        try:
            with pytest.raises(PeerError, match=r"(2 of 6 subscribers did not get|another subscriber's message)"):
                connections.deliver_to_each(MqttWire(), sockets[-1], sockets[:-1])
        finally:
            close_all(sockets)


def test_impossible_loads_are_refused() -> None:
    with pytest.raises(UsageError, match="8 or more"):
        Load("t", 1, 7)
    with pytest.raises(UsageError, match="at least one subscriber"):
        Load("t", 0)
    with pytest.raises(UsageError, match="MQTT version 3"):
        MqttWire(3)
    with pytest.raises(UsageError, match="QoS 0"):
        NatsWire().opening("a", "t", 1)
