"""Devices of the fleet, many in one process (started by `fleet`): each lives a device's life until the fleet ends.

A device connects with a persistent session and a will, subscribes to its commands at every connect (as most devices'
programs do), publishes telemetry, and after about `--connected` seconds disconnects: half of them with a DISCONNECT,
the others by breaking the connection, so that the will goes out. It waits for its acknowledgements before: what it
would have to send again after a break, a broker may store twice with QoS 1, and a reader could not tell whose repeat it
is. Some seconds later it comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

from ..stage.parts import Orders, run_part, tell_driver
from .device_connection import DeviceConnection, DeviceWill, FleetDelivery, dial_broker
from .telemetry import NumberedAccount, Sensors, client_id, device_and_number, device_topic, numbered

HOST: Final = "127.0.0.1"
TELL_S: Final = 0.5
ABSENT_S: Final = (0.5, 8.0)
OPENING_AT_ONCE: Final = 100


class Fleet:
    """What the devices of this process have done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self.began = asyncio.Event()
        self.ending = asyncio.Event()
        self.sleepers: set[asyncio.Future[None]] = set()
        self.commands = NumberedAccount()
        self.sent_again = self.published = self.payload_bytes = self.wills = self.connects = self.resumed = 0

    def end(self) -> None:
        """No more telemetry: those who are away come back, those who are here stay."""
        self.ending.set()
        for sleeper in self.sleepers:
            _wake(sleeper)

    def on_command(self, delivery: FleetDelivery) -> None:
        """A command came. One that the broker marks as sent again may be a repeat: it could not know."""
        device, number = device_and_number(delivery.payload)
        repeats = self.commands.repeats
        self.commands.take(device, number)
        if delivery.again and self.commands.repeats > repeats:
            self.commands.repeats = repeats
            self.commands.taken -= 1
            self.sent_again += 1

    def told(self) -> dict[str, int]:
        """For the driver."""
        counted = ("published", "payload_bytes", "wills", "connects", "resumed", "sent_again")
        commands = {f"commands_{name}": getattr(self.commands, name) for name in ("taken", "missing", "out_of_order")}
        return {name: getattr(self, name) for name in counted} | commands | {"commands_repeats": self.commands.repeats}


class Device:
    """One device."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._number = number
        self._random = random.Random(f"life {fleet.options.seed} {number}")
        self._sensors = Sensors(number, fleet.options.seed)
        self._telemetry = device_topic(number, "telemetry")
        self._connects = 0

    async def first_connection(self) -> DeviceConnection:
        """The first connect, before the fleet begins."""
        async with self._fleet.opening:
            return await self._connect()

    async def live(self, connection: DeviceConnection) -> None:
        """From the fleet's beginning to its end, where it is connected and everything is acknowledged."""
        fleet, draw = self._fleet, self._random
        await fleet.began.wait()
        # As if it had been connected for a while: else all would leave at once after the first minute.
        connected_s = draw.uniform(0, fleet.options.connected)
        while True:
            await self._publish(connection, time.monotonic() + connected_s)
            await connection.quiet()
            if fleet.ending.is_set():
                return
            if draw.random() < 0.5:
                await connection.leave()
            else:
                fleet.wills += 1
                await connection.drop()
            await self._sleep(draw.uniform(*ABSENT_S))
            connection = await self._connect()
            connected_s = draw.uniform(0.5, 1.5) * fleet.options.connected

    async def _connect(self) -> DeviceConnection:
        connection = await dial_broker(HOST, self._fleet.options.port, self._fleet.on_command)
        will = DeviceWill(device_topic(self._number, "status"), numbered(self._number, self._connects, state="lost"))
        self._connects += 1
        self._fleet.connects += 1
        resumed = await connection.open(client_id(self._number), will=will)
        self._fleet.resumed += resumed
        await connection.subscribe(device_topic(self._number, "command"))
        return connection

    async def _publish(self, connection: DeviceConnection, until_s: float) -> None:
        fleet, period_s = self._fleet, self._fleet.options.period
        while not fleet.ending.is_set() and time.monotonic() < until_s:
            await self._sleep(self._random.uniform(0.5, 1.5) * period_s)
            if fleet.ending.is_set():
                return
            payload = self._sensors.message(time.time())
            connection.publish(self._telemetry, payload)
            fleet.published += 1
            fleet.payload_bytes += len(payload)

    async def _sleep(self, seconds: float) -> None:
        """As long, or until the fleet ends."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(seconds, _wake, woken)
        self._fleet.sleepers.add(woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._fleet.sleepers.discard(woken)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def run(options: argparse.Namespace) -> None:
    """All devices of this process."""
    loop = asyncio.get_running_loop()
    fleet = Fleet(options)
    orders = Orders(lambda: loop.call_soon_threadsafe(fleet.end))
    devices = [Device(fleet, number) for number in range(options.first, options.first + options.devices)]
    connections = await asyncio.gather(*[device.first_connection() for device in devices])
    tell_driver(ready=True)
    await asyncio.to_thread(orders.wait_go)
    fleet.began.set()
    lives = asyncio.gather(*[d.live(c) for d, c in zip(devices, connections, strict=True)])
    telling = asyncio.create_task(_tell(fleet))
    await lives
    tell_driver(settled=True, **fleet.told())
    await telling


async def _tell(fleet: Fleet) -> None:
    """Until the driver closes this process's input."""
    while True:
        await asyncio.sleep(TELL_S)
        tell_driver(**fleet.told())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, all from the driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "first", "devices", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--period", type=float, required=True, help="seconds between two messages of a device")
    parser.add_argument("--connected", type=float, required=True, help="seconds that a device stays, about")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fleet.devices`; returns the exit code."""
    return run_part(run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
