"""The clients of the bandwidth driver: all publishers, or all subscribers, of one run; paho threads in one process.

`predict` is `lexicast.mqtt` (dictionary-aware), `deflate` plain paho whose program deflates each payload (raw DEFLATE,
level 9), `nothing` plain paho. QoS 1 throughout. Each subscriber checks number and content of what it got.

A part tells `ready`; publishers begin at the order `go`; both tell `done` with their times (monotonic ns).
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast.mqtt as mqtt
from lexicast.compression.codecs import Deflate

from ..stage.parts import Orders, tell

METHODS: Final = ("nothing", "deflate", "predict")
HOST: Final = "127.0.0.1"
INFLIGHT: Final = 100
CONNECT_TIMEOUT_S: Final = 30.0


def load(file: Path, count: int) -> list[bytes]:
    """The first `count` messages of a file, one a line."""
    with file.open("rb") as lines:
        return [line.rstrip(b"\n") for line, _ in zip(lines, range(count), strict=False)]


def make_client(method: str, name: str) -> paho.Client:
    """A client of that method, not connected."""
    if method == "predict":
        return mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)
    return paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)


class Publisher:
    """Publishes its share of the messages."""

    def __init__(self, method: str, name: str, port: int, topic: str, messages: Sequence[bytes]) -> None:
        self._deflate = Deflate() if method == "deflate" else None
        self._topic = topic
        self._messages = messages
        self._left = len(messages)
        self.connected = threading.Event()
        self.done = threading.Event()
        self._client = make_client(method, name)
        self._client.max_inflight_messages_set(INFLIGHT)
        self._client.on_connect = lambda *_: self.connected.set()
        self._client.on_publish = self._on_publish
        self._client.connect(HOST, port)
        self._client.loop_start()

    def _on_publish(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self.done.set()

    def publish(self) -> None:
        """Hand all messages over."""
        deflate = self._deflate
        for message in self._messages:
            self._client.publish(self._topic, deflate.compress(message) if deflate else message, qos=1)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class Subscriber:
    """Waits for all messages."""

    def __init__(self, method: str, name: str, port: int, topic: str, messages: Sequence[bytes]) -> None:
        self._inflate = Deflate() if method == "deflate" else None
        self._topic = topic
        self._left = len(messages)
        self._sum = sum(map(zlib.crc32, messages))
        self.ready = threading.Event()
        self.done = threading.Event()
        self.done_ns = 0
        self.error = ""
        self._client = make_client(method, name)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self.ready.set()
        self._client.on_message = self._on_message
        self._client.connect(HOST, port)
        self._client.loop_start()

    def _on_connect(self, *_: Any) -> None:
        self._client.subscribe(self._topic, qos=1)

    def _on_message(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        payload = bytes(message.payload)
        self._sum -= zlib.crc32(self._inflate.decompress(payload) if self._inflate else payload)
        self._left -= 1
        if self._left == 0:
            self.done_ns = time.monotonic_ns()
            self.error = "" if self._sum == 0 else "what arrived is not what was published"
            self.done.set()

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def run_publishers(options: argparse.Namespace, messages: list[bytes], orders: Orders) -> None:
    """Publish when told to; tell when all is acknowledged."""
    share = [messages[at :: options.count] for at in range(options.count)]
    publishers = [
        Publisher(options.method, f"p{at}", options.port, options.topic, share[at]) for at in range(len(share))
    ]
    if not all(publisher.connected.wait(CONNECT_TIMEOUT_S) for publisher in publishers):
        sys.exit(f"not every publisher is connected after {CONNECT_TIMEOUT_S:.0f} s")
    tell(ready=True)
    orders.wait_go()
    threads = [threading.Thread(target=publisher.publish) for publisher in publishers]
    for thread in threads:
        thread.start()
    for publisher in publishers:
        publisher.done.wait()
    tell(done=time.monotonic_ns())
    orders.finished.wait()
    for publisher in publishers:
        publisher.close()


def run_subscribers(options: argparse.Namespace, messages: list[bytes], orders: Orders) -> None:
    """Tell when every subscriber has everything."""
    made = [Subscriber(options.method, f"s{at}", options.port, options.topic, messages) for at in range(options.count)]
    if not all(subscriber.ready.wait(CONNECT_TIMEOUT_S) for subscriber in made):
        sys.exit(f"not every subscriber is subscribed after {CONNECT_TIMEOUT_S:.0f} s")
    tell(ready=True)
    for subscriber in made:
        subscriber.done.wait()
    tell(errors=[subscriber.error for subscriber in made if subscriber.error])
    tell(done=[subscriber.done_ns for subscriber in made])
    orders.finished.wait()
    for subscriber in made:
        subscriber.close()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.bandwidth.clients`; started by `bandwidth`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("publishers", "subscribers"))
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--count", type=int, required=True, help="clients")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--file", type=Path, required=True, help="messages, one a line")
    parser.add_argument("--messages", type=int, required=True)
    options = parser.parse_args(argv)
    run = run_publishers if options.role == "publishers" else run_subscribers
    run(options, load(options.file, options.messages), Orders())
    return 0


if __name__ == "__main__":
    sys.exit(main())
