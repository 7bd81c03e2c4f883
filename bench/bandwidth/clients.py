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

from lexicast.compression.codecs import Deflate

from ..data.message_files import read_lines
from ..stage.clients import CONNECT_TIMEOUT_S, close_client, connect_client, make_client
from ..stage.parts import Orders, tell_driver
from .cells import METHODS

INFLIGHT: Final = 100


class SharePublisher:
    """Publishes its share of the messages."""

    def __init__(self, method: str, name: str, port: int, topic: str, messages: Sequence[bytes]) -> None:
        """Connects. Raises `PeerError`."""
        self._deflate = Deflate() if method == "deflate" else None
        self._topic = topic
        self._messages = messages
        self._left = len(messages)
        self.done = threading.Event()
        self._client = make_client(name, is_aware=method == "predict", in_flight=INFLIGHT)
        self._client.on_publish = self._on_publish
        connect_client(self._client, port)

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
        close_client(self._client)


class SumSubscriber:
    """Waits for all messages, which it checks by the sum of their CRCs."""

    def __init__(self, method: str, name: str, port: int, topic: str, messages: Sequence[bytes]) -> None:
        """Connects and subscribes. Raises `PeerError`."""
        self._inflate = Deflate() if method == "deflate" else None
        self._left = len(messages)
        self._sum = sum(map(zlib.crc32, messages))
        self.ready = threading.Event()
        self.done = threading.Event()
        self.done_ns = 0
        self.error = ""
        client = self._client = make_client(name, is_aware=method == "predict")
        client.on_subscribe = lambda *_: self.ready.set()
        client.on_message = self._on_message
        connect_client(client, port, lambda: client.subscribe(topic, qos=1))

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
        close_client(self._client)


def run_publishers(options: argparse.Namespace, messages: list[bytes], orders: Orders) -> None:
    """Publish when told to; tell when all is acknowledged."""
    share = [messages[at :: options.count] for at in range(options.count)]
    publishers = [
        SharePublisher(options.method, f"p{at}", options.port, options.topic, share[at]) for at in range(len(share))
    ]
    tell_driver(ready=True)
    orders.wait_go()
    threads = [threading.Thread(target=publisher.publish) for publisher in publishers]
    for thread in threads:
        thread.start()
    for publisher in publishers:
        publisher.done.wait()
    tell_driver(done=time.monotonic_ns())
    orders.finished.wait()
    for publisher in publishers:
        publisher.close()


def run_subscribers(options: argparse.Namespace, messages: list[bytes], orders: Orders) -> None:
    """Tell when every subscriber has everything."""
    made = [
        SumSubscriber(options.method, f"s{at}", options.port, options.topic, messages) for at in range(options.count)
    ]
    if not all(subscriber.ready.wait(CONNECT_TIMEOUT_S) for subscriber in made):
        sys.exit(f"not every subscriber is subscribed after {CONNECT_TIMEOUT_S:.0f} s")
    tell_driver(ready=True)
    for subscriber in made:
        subscriber.done.wait()
    tell_driver(errors=[subscriber.error for subscriber in made if subscriber.error])
    tell_driver(done=[subscriber.done_ns for subscriber in made])
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
    run(options, read_lines(options.file, options.messages), Orders())
    return 0


if __name__ == "__main__":
    sys.exit(main())
