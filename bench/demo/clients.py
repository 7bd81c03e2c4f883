"""The demo's clients, each a process: publishers (paho, or `lexicast.mqtt`), MQTT subscribers (the same two), and a
subscriber that is a Python client on the broker's actor handle.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import paho.mqtt.client as paho
import uvloop

import lexicast.mqtt as aware
from lexicast.actors.client.client import Client as PythonClient
from lexicast.actors.client.known_brokers import Endpoint, Resolve
from lexicast.actors.ray.token import use_own_token
from lexicast.cluster.errors import DictionaryError, PeerError, UnavailableError

from ..data.flights import Event, read_events
from ..stage.clients import CONNECT_TIMEOUT_S, HOST, close_client, connect_client, make_client, send_at_once
from ..stage.parts import Orders, tell_driver
from .verdicts import Received, keep_arrivals

IN_FLIGHT: Final = 200
"""Publications of one publisher that are not acknowledged yet; more would only wait in paho."""

TELL_S: Final = 0.2
SETTLE_S: Final = 0.5
"""After everything has arrived, a repeat would come within this."""


def demo_client(name: str, is_aware: bool, version: int) -> paho.Client:
    """A client of that MQTT version, plain or dictionary-aware, not yet connected."""
    client = make_client(f"demo-{name}", is_aware=is_aware, version=version, in_flight=IN_FLIGHT)
    send_at_once(client)
    return client


class EventPublisher:
    """Publishes its own events, each when it is due, with QoS 1; tells how many are sent and acknowledged."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._mine = [(n, e) for n, e in enumerate(read_events(options.events)) if e.publisher == options.name]
        self._room = threading.Semaphore(IN_FLIGHT)
        self._acknowledged = 0
        self._refused = 0
        self._sent: list[tuple[int, int]] = []
        self._last_hour_us: int | None = None
        self._told = 0.0

    def run(self, orders: Orders) -> None:
        """From connecting to the last acknowledgement."""
        options = self._options
        client = demo_client(options.name, options.aware, 5)
        client.on_publish = self._on_publish
        connect_client(client, options.port)
        tell_driver(ready=True)
        start_ns = orders.wait_go()
        for number, event in self._mine:
            self._wait_until(start_ns + int(number * 1e9 / options.rate))
            if not self._publish(client, number, event, orders):
                break
        while self._acknowledged < len(self._sent) and not orders.finished.wait(TELL_S):
            self._tell()
        np.save(options.folder / f"sent-{options.name}.npy", np.array(self._sent, dtype=np.int64).reshape(-1, 2))
        self._tell(done=True)
        close_client(client)

    def _publish(self, client: paho.Client, number: int, event: Event, orders: Orders) -> bool:
        """False when it is asked to finish while there is no room."""
        while not self._room.acquire(timeout=TELL_S):
            self._tell()
            if orders.finished.is_set():
                return False
        if number >= self._options.last_hour and self._last_hour_us is None:
            self._last_hour_us = time.time_ns() // 1000
        self._sent.append((number, time.monotonic_ns()))
        client.publish(event.topic, event.payload, qos=1)
        if time.monotonic() - self._told > TELL_S:
            self._tell()
        return True

    def _wait_until(self, due_ns: int) -> None:
        left_s = (due_ns - time.monotonic_ns()) / 1e9
        while left_s > 0:
            time.sleep(min(left_s, TELL_S))
            left_s = (due_ns - time.monotonic_ns()) / 1e9
            if left_s > 0:
                self._tell()

    def _on_publish(self, client: paho.Client, userdata: Any, mid: int, reason: Any, properties: Any) -> None:
        self._refused += reason.is_failure
        self._acknowledged += 1
        self._room.release()

    def _tell(self, **more: Any) -> None:
        self._told = time.monotonic()
        refused, last_hour_us = self._refused, self._last_hour_us
        tell_driver(sent=len(self._sent), acknowledged=self._acknowledged - refused, last_hour_us=last_hour_us, **more)


class EventSubscriber:
    """What every subscriber does with what it gets: keeps it, counts it, and accounts for it at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.received: list[Received] = []

    def finish(self) -> None:
        """The account of everything received."""
        keep_arrivals(self.received, self._options.events, self._options.folder, self._options.name)
        tell_driver(received=len(self.received), done=True)

    def follow(self, orders: Orders) -> None:
        """Tells how many have arrived, until the order to finish."""
        while not orders.finished.wait(TELL_S):
            tell_driver(received=len(self.received))
        time.sleep(SETTLE_S)


def subscribe_mqtt(options: argparse.Namespace, orders: Orders) -> None:
    """An MQTT subscriber to everything, QoS 1: paho's 3.1.1, or `lexicast.mqtt`'s 5 that asks for dictionaries."""
    subscriber = EventSubscriber(options)
    received = subscriber.received
    client = demo_client(options.name, options.aware, 5 if options.aware else 4)
    subscribed = threading.Event()

    def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        received.append(Received(time.monotonic_ns(), message.topic, bytes(message.payload)))

    def on_lost(client: paho.Client, userdata: Any, message: paho.MQTTMessage | None, error: DictionaryError) -> None:
        print(f"lost: {error}", file=sys.stderr, flush=True)

    client.on_message = on_message
    client.on_subscribe = lambda *unused: subscribed.set()
    if isinstance(client, aware.Client):
        client.on_sdc_error = on_lost
    connect_client(client, options.port, lambda: client.subscribe("#", qos=1))
    if not subscribed.wait(CONNECT_TIMEOUT_S):
        raise PeerError("the broker did not confirm the subscription")
    tell_driver(ready=True)
    subscriber.follow(orders)
    close_client(client)
    subscriber.finish()


async def subscribe_python(options: argparse.Namespace, orders: Orders) -> None:
    """The Python client. It finds the broker by its actor handle; its data goes over the broker's link, here through
    the counting proxy, which the handle's addresses are replaced by."""
    use_own_token()
    from lexicast.actors.client.ray_endpoints import ray_endpoints  # loads Ray

    async def resolve() -> list[Endpoint]:
        through = (f"tcp:{HOST}:{options.port}",)
        return [replace(one, addresses=through, calls=None) for one in await ray_endpoints(options.ray)]

    subscriber = EventSubscriber(options)
    async with _connected(resolve, f"demo-{options.name}") as bus:
        # What only the handle can do: a call on the broker's actor.
        status = await bus.broker.status.remote()
        async with bus.subscribe("#") as subscription:
            tell_driver(ready=True, broker=status["name"])
            receiving = asyncio.create_task(_receive(subscription, subscriber.received))
            await asyncio.to_thread(subscriber.follow, orders)
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
    subscriber.finish()


@asynccontextmanager
async def _connected(resolve: Resolve, client_id: str) -> AsyncIterator[PythonClient]:
    """An open client. On a machine that is busy starting everything at once the first try may time out."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            client = await PythonClient(resolve, client_id=client_id).open()
            break
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
    try:
        yield client
    finally:
        await client.close()


async def _receive(subscription: Any, received: list[Received]) -> None:
    while True:
        batch = await subscription.next_batch()
        now_ns = time.monotonic_ns()
        received += [Received(now_ns, message.topic, message.payload) for message in batch]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("publish", "subscribe-mqtt", "subscribe-python"))
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True, help="of its link's proxy")
    parser.add_argument("--events", type=Path, required=True, help="file with the events (data.flights)")
    parser.add_argument("--folder", type=Path, required=True, help="where its account goes")
    parser.add_argument("--aware", action="store_true", help="ask for dictionaries")
    parser.add_argument("--rate", type=float, default=1.0, help="events a second, of all publishers together")
    parser.add_argument("--last-hour", type=int, default=0, help="number of the first event of the data's last hour")
    parser.add_argument("--ray", help="address of the cluster's Ray")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.demo.clients ROLE ...`; started by the demo."""
    options = parse(argv)
    orders = Orders()
    if options.role == "publish":
        EventPublisher(options).run(orders)
    elif options.role == "subscribe-mqtt":
        subscribe_mqtt(options, orders)
    else:
        uvloop.run(subscribe_python(options, orders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
