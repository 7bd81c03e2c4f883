"""Batches of `lexicast.mqtt` over real sockets: as one on the publisher's link, single messages for everybody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

import lexicast.mqtt as mqtt
from lexicast.actors.client.paho import _Held
from lexicast.compression.streams.batches import BATCH_TAG, DueBatch
from lexicast.compression.wire import BATCHES_PROPERTY

from ...support.mqtt_harness import WAIT_S, Served, served

LONG_S = 30.0


def text(number: int) -> bytes:
    return b'{"state": "running", "number": %d, "speed": %d}' % (number, number % 90)


def wait(true: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + 3 * WAIT_S
    while not true():
        assert time.monotonic() < until, f"{what} did not come true"
        time.sleep(0.002)


class Program(mqtt.Client):
    """A client whose batches are seen, and which remembers what it was told and got."""

    def __init__(self, port: int, client_id: str, inflight: int = 20, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, **options)
        self.units: list[int] = []
        self.published: list[int] = []
        self.got: list[tuple[str, bytes, int]] = []
        self.on_publish = lambda _client, _data, mid, _reason, _properties: self.published.append(mid)
        self.on_message = lambda _client, _data, message: self.got.append(
            (message.topic, bytes(message.payload), message.qos)
        )
        self.subscribed = 0
        self.on_subscribe = lambda *_: setattr(self, "subscribed", self.subscribed + 1)
        outgoing_batch = self._sdc.outgoing_batch

        def seen(topic: bytes, messages: Any, now_us: int) -> Any:
            made = outgoing_batch(topic, messages, now_us)
            assert made.payload[0] == BATCH_TAG
            self.units.append(len(messages))
            return made

        self._sdc.outgoing_batch = seen  # type: ignore[method-assign]  # looks, and changes nothing
        self.max_inflight_messages_set(inflight)
        self.connect("127.0.0.1", port)
        self.loop_start()
        wait(self.is_connected, "connected")


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def program(there: Served) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def make(client_id: str, *options: Any, **named: Any) -> Program:
        made.append(Program(there.port, client_id, *options, **named))
        return made[-1]

    yield make
    for each in made:
        each.disconnect()
        each.loop_stop()


def reader(program: Callable[..., Program], topic: str) -> Program:
    made = program(f"reader of {topic}", sdc=False)
    made.subscribe(topic, qos=2)
    wait(lambda: made.subscribed, "SUBACK")
    return made


def test_single_messages_come_out_in_order_with_their_qos_and_each_is_told_of(program: Callable[..., Program]) -> None:
    subscriber, writer = reader(program, "batch/#"), program("writer", 1_000, batch_s=0.05)
    infos = []
    for number in range(300):
        infos.append(writer.publish(f"batch/{number % 2}", text(number), qos=number % 3 % 2))
    for info in infos:
        info.wait_for_publish(WAIT_S)
    wait(lambda: len(subscriber.got) == 300, "all have arrived")
    for part in (0, 1):
        sent = [(f"batch/{part}", text(n), n % 3 % 2) for n in range(part, 300, 2)]
        assert [each for each in subscriber.got if each[0] == f"batch/{part}"] == sent
    wait(lambda: len(writer.published) == 300, "all are told of")
    assert sorted(writer.published) == sorted([info.mid for info in infos])
    assert sum(writer.units) > 250
    assert max(writer.units) > 10


def test_what_may_not_wait_goes_behind_what_waits_of_its_topic(program: Callable[..., Program]) -> None:
    subscriber, writer = reader(program, "alone/a"), program("alone", batch_s=LONG_S)
    for number in range(5):
        writer.publish("alone/a", text(number))
    writer.publish("alone/a", text(5), qos=2)
    for number in range(6, 9):
        writer.publish("alone/a", text(number), qos=1)
    writer.publish("alone/a", text(9), retain=True)
    writer.publish("alone/a", b"x" * 5_000)
    wait(lambda: len(subscriber.got) == 11, "all have arrived")
    payloads = [payload for _, payload, _ in subscriber.got]
    # QoS 2 is handed over when it is released
    assert [each for each in payloads if each != text(5)] == [
        *[text(n) for n in range(10) if n != 5],
        b"x" * 5_000,
    ]
    assert writer.units == [5, 3]


def test_what_waits_is_sent_before_a_program_leaves(program: Callable[..., Program]) -> None:
    subscriber, writer = reader(program, "leave/a"), program("leaving", batch_s=LONG_S)
    for number in range(7):
        writer.publish("leave/a", text(number))
    assert not subscriber.got
    writer.disconnect()
    wait(lambda: len(subscriber.got) == 7, "all have arrived")
    assert writer.units == [7]


def test_what_waits_when_a_link_breaks_is_sent_on_the_next_one(program: Callable[..., Program]) -> None:
    subscriber, writer = reader(program, "broken/a"), program("broken", batch_s=LONG_S, clean_session=None)
    for number in range(6):
        writer.publish("broken/a", text(number), qos=number % 2)
    sock: Any = writer.socket()
    sock.shutdown(2)
    wait(lambda: not writer._sdc_accepted or not writer.is_connected(), "the link is broken")
    wait(writer.is_connected, "connected again")
    wait(lambda: writer._sdc_accepted, "accepted")
    writer._sdc_send_batches(writer._sdc_batcher.flush_all() if writer._sdc_batcher else ())
    wait(lambda: len(subscriber.got) >= 6, "all have arrived")
    assert {payload for _, payload, _ in subscriber.got} == {text(n) for n in range(6)}


def test_what_a_connection_took_along_is_not_told_as_published() -> None:
    """Paho marks what of QoS 0 was not written when it connects again; so each message of a batch is."""
    client, told = mqtt.Client(CallbackAPIVersion.VERSION2, batch_s=LONG_S), list[int]()
    client.on_publish = lambda _client, _data, mid, _reason, _properties: told.append(mid)
    client.connect_async("127.0.0.1", 1)
    client._sdc.connected(True, batches=True)
    infos = [MQTTMessageInfo(mid) for mid in (1, 2, 3)]
    entries = [_Held(info.mid, b"lost/a", text(info.mid), 0, False, False, info, None) for info in infos]
    client._sdc_send_batches([DueBatch(b"lost/a", entries)])
    with suppress(OSError):
        client.reconnect()
    assert [info.rc for info in infos] == [MQTTErrorCode.MQTT_ERR_CONN_LOST] * 3
    assert not told


def test_a_batch_that_no_broker_takes_is_not_gathered() -> None:
    with pytest.raises(ValueError, match="at most 262144"):
        mqtt.Client(CallbackAPIVersion.VERSION2, batch_s=1.0, batch_bytes=262_145)


def test_a_batch_that_is_none_ends_the_connection(program: Callable[..., Program]) -> None:
    writer = program("hostile", batch_s=LONG_S)
    reasons: list[Any] = []
    writer.on_disconnect = lambda _client, _data, _flags, reason, _properties: reasons.append(reason.value)
    with writer._sdc_lock:
        topic = b"hostile/a"
        body = len(topic).to_bytes(2, "big") + topic + b"\0" + bytes((BATCH_TAG, 7, 7))
        writer._packet_queue(0x30, bytes((0x30, len(body))) + body, 0, 1)
    wait(lambda: reasons, "disconnected")
    assert reasons[0] == 0x99


def test_a_broker_that_takes_none_gets_single_messages() -> None:
    with served(compression__enabled=False) as plain:
        subscriber, writer = Program(plain.port, "r", sdc=False), Program(plain.port, "w", batch_s=LONG_S)
        subscriber.subscribe("plain/a")
        wait(lambda: subscriber.subscribed, "SUBACK")
        assert BATCHES_PROPERTY in writer._sdc_questions
        for number in range(5):
            writer.publish("plain/a", text(number))
        wait(lambda: len(subscriber.got) == 5, "all have arrived")
        assert not writer.units
        for each in (subscriber, writer):
            each.disconnect()
            each.loop_stop()
