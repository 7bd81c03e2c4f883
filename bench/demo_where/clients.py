"""Who gets what holds, each a process: MQTT 5 subscribers, and Python clients that ask the history; in both roles one
gives the broker the condition, the other one receives everything and asks it itself.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import uvloop
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from lexicast.actors.client.address import resolver
from lexicast.actors.client.client import Client as PythonClient
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.cluster.errors import PeerError

from ..demo.clients import SETTLE_S, TELL_S, demo_client
from ..demo.verdicts import Received, keep_arrivals
from ..stage.clients import CONNECT_TIMEOUT_S, HOST, close_client, connect_client
from ..stage.parts import Orders, tell_driver
from .conditions import QOS, EventFilter

EVERYTHING = "#"
GIVE_UP_S = 60.0


class SelectingClient:
    """What all do with what they get: count it, keep what holds, and account for that and for their own CPU."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._filter = None if options.at_broker else EventFilter(options.where)
        self._received = 0
        self._kept: list[Received] = []
        self._cpu_from_s = time.process_time()

    @property
    def where(self) -> str | None:
        """The condition for the broker; None: it is asked here."""
        return self._options.where if self._filter is None else None

    def begin(self) -> None:
        """What it has used until now (loading, connecting) does not count."""
        self._cpu_from_s = time.process_time()
        tell_driver(ready=True)

    def take(self, topic: str, payload: bytes) -> None:
        """One message."""
        self._received += 1
        if self._filter is None or self._filter.holds(topic, payload):
            self._kept.append(Received(time.monotonic_ns(), topic, payload))

    def tell(self, **more: Any) -> None:
        """How far it is."""
        cpu_s = time.process_time() - self._cpu_from_s
        tell_driver(received=self._received, cpu_s=round(cpu_s, 6), at_ns=time.monotonic_ns(), **more)

    def finish(self) -> None:
        """The account of what was kept. (It takes CPU of its own, which was told before.)"""
        keep_arrivals(self._kept, self._options.events, self._options.folder, self._options.name)
        tell_driver(done=True)


def subscribe_live(options: argparse.Namespace, orders: Orders) -> None:
    """A subscriber over MQTT 5. Raises `PeerError` when the broker refuses the condition."""
    receiver = SelectingClient(options)
    client = demo_client(options.name, is_aware=False, version=5)
    subscribed = threading.Event()
    refused: list[str] = []

    def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        receiver.take(message.topic, bytes(message.payload))

    def on_subscribe(client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any) -> None:
        refused.extend([f"{reason} {properties}" for reason in reasons if reason.is_failure])
        subscribed.set()

    asked = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call] # paho has no types there
    if receiver.where is not None:
        asked.UserProperty = ("where", receiver.where)
    client.on_message = on_message
    client.on_subscribe = on_subscribe
    connect_client(
        client,
        options.port,
        lambda: client.subscribe(EVERYTHING, options=SubscribeOptions(QOS), properties=asked),
    )
    if not subscribed.wait(CONNECT_TIMEOUT_S) or refused:
        raise PeerError(f"the broker did not confirm the subscription: {refused or 'no answer'}")
    receiver.begin()
    while not orders.finished.wait(TELL_S):
        receiver.tell()
    time.sleep(SETTLE_S)
    receiver.tell()
    close_client(client)
    receiver.finish()


async def ask_history(options: argparse.Namespace, orders: Orders) -> None:
    """A Python client that asks for everything there is, over a link that is the counting proxy's."""
    find = resolver(None, options.data_dir, None)

    async def resolve() -> list[Endpoint]:
        return [replace(one, addresses=(f"tcp:{HOST}:{options.port}",)) for one in await find()]

    receiver = SelectingClient(options)
    async with PythonClient(resolve, client_id=f"demo-{options.name}", give_up_s=GIVE_UP_S) as bus:
        receiver.begin()
        await asyncio.to_thread(orders.wait_go)
        began_s = time.perf_counter()
        async for message in bus.history(EVERYTHING, where=receiver.where):
            receiver.take(message.topic, message.payload)
        receiver.tell(seconds=round(time.perf_counter() - began_s, 6))
        await asyncio.to_thread(orders.finished.wait)
    receiver.finish()


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("live", "past"))
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True, help="of its link's proxy")
    parser.add_argument("--events", type=Path, required=True, help="file with the events (data.flights)")
    parser.add_argument("--folder", type=Path, required=True, help="where its account goes")
    parser.add_argument("--where", required=True, help="the condition")
    parser.add_argument("--at-broker", action="store_true", help="give it to the broker, instead of asking it here")
    parser.add_argument("--data-dir", type=Path, help="of the cluster whose history is asked")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.demo_where.clients ROLE ...`; started by the demo."""
    options = parse(argv)
    orders = Orders()
    if options.role == "live":
        subscribe_live(options, orders)
    else:
        uvloop.run(ask_history(options, orders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
