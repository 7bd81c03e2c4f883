"""The load generator over WebSocket: what it counts without, it counts with it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.mqtt.websocket.frames import frame_header
from lexicast.bench.peers.framed_socket import FramedSocket
from lexicast.bench.peers.loadgen import Load, OpenLoad
from lexicast.bench.peers.session_opening import SessionSpec, open_sessions
from lexicast.bench.peers.wire import MqttWire, RefusedError
from lexicast.bench.stage.servers import Address

from ..support.mqtt_harness import HOST, Served
from ..support.websockets import served_by_websocket, ws_port


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with served_by_websocket() as found:
        yield found


@pytest.mark.parametrize("qos", [0, 1])
def test_a_load_arrives_whole_and_in_order(running: Served, qos: int) -> None:
    address = Address(HOST, ws_port(running), websocket=True)
    load = OpenLoad(address, MqttWire(), Load(f"ws{qos}", 5, 140, qos, verify=True))
    try:
        result = load.run(30.0, 1_000, messages_max=20_000)
    finally:
        load.close()
    assert (result.sent, result.deliveries, result.lost) == (20_000, 100_000, 0)


def test_what_is_no_websocket_is_told(running: Served) -> None:
    with pytest.raises(RefusedError):
        open_sessions(Address(HOST, running.port, websocket=True), MqttWire(), [SessionSpec("a")])


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 40)), max_size=8), st.integers(20, 5_000))
def test_frames_are_taken_off_however_they_come(runs: list[tuple[int, int]], most: int) -> None:
    """Runs of equal frames, of which a read has any part."""
    payloads = [bytes([number % 251]) * size for number, (size, count) in enumerate(runs) for _ in range(count)]
    sent = b"".join([frame_header(len(each)) + each for each in payloads])
    ours, theirs = socket.socketpair()
    try:
        framed = FramedSocket(ours)
        framed._framed = True
        ours.setblocking(False)
        got, buffer = b"", bytearray(most)
        for at in range(0, len(sent), 4_000):
            theirs.sendall(sent[at : at + 4_000])
            while True:
                try:
                    got += buffer[: framed.recv_into(buffer)]
                except BlockingIOError:
                    if not _readable(ours):
                        break
        assert got == b"".join(payloads)
    finally:
        ours.close()
        theirs.close()


def _readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
