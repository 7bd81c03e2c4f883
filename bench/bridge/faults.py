"""Messages both ways through a bridge whose link is cut, whose broker there is restarted, whose process and whose
coordinator are killed: what is lost, and what comes back to where it was published.

A Python client publishes here (each once, whatever happens to its link), an MQTT client there; each side reads what
comes from the other, and here also what was published here: of that a second copy has gone round.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

import lexicast
from lexicast.actors.mqtt.codec import PacketReader, encode_acks, encode_packet, encode_qos_run
from lexicast.actors.mqtt.codec.packets import (
    PUBACK,
    V5,
    AckRun,
    ConnAck,
    Connect,
    PublishRun,
    SubAck,
    Subscribe,
    SubscriptionOptions,
)
from lexicast.actors.mqtt.codec.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_S
from lexicast.cluster.errors import LexicastError

from .. import report as reports
from ..report import DriverReport
from ..stage.clusters import READY_FILE, cluster_status, data_dir
from ..stage.proxy import Proxy
from ..stage.servers import Target
from .sites import HOST, MosquittoSite, bridge_text, start_bridged, wait_connected

TOPICS: Final = 100
PART: Final = 1_000
WINDOW: Final = 500
PAYLOAD_BYTES: Final = 100
QUIET_S: Final = 20.0
"""What has not come after so long without anything is lost."""


@dataclass
class BridgeArrivals:
    """How often each message has come."""

    messages: int
    seen: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = np.zeros(self.messages, np.int32)
        self.at = time.monotonic()

    def add(self, payloads: list[bytes]) -> None:
        """These have come; a message's number stands at its beginning."""
        numbers = np.array([int(payload[:10]) for payload in payloads], np.int64)
        np.add.at(self.seen, numbers, 1)
        self.at = time.monotonic()

    @property
    def lost(self) -> int:
        """Those that never came."""
        return int((self.seen == 0).sum())

    @property
    def repeated(self) -> int:
        """Copies beyond the first."""
        return int(np.maximum(self.seen - 1, 0).sum())


def payload_of(number: int) -> bytes:
    """A message that can be told apart."""
    return (b"%010d" % number).ljust(PAYLOAD_BYTES, b".")


class FarClient:
    """An MQTT 5 client of the broker there with a persistent session: connects again whenever it has to."""

    def __init__(self, port: int, client_id: str) -> None:
        self._port = port
        self._client_id = client_id
        self.connected = asyncio.Event()

    async def _connection(self, subscribes: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, PacketReader]:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        parser = PacketReader(1 << 24, from_client=False, version=V5)
        asked = {SESSION_EXPIRY_S: 3_600, RECEIVE_MAXIMUM: 10_000}
        writer.write(encode_packet(Connect(V5, self._client_id, False, 0, properties=asked), V5))
        if subscribes:
            options = SubscriptionOptions(1, retain_handling=1)
            writer.write(encode_packet(Subscribe(60_001, [(subscribes.encode(), options)]), V5))
        return reader, writer, parser

    async def read(self, filter: str, counted: BridgeArrivals) -> None:
        """Count what comes; runs until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                reader, writer, parser = await self._connection(filter)
                try:
                    while not writer.is_closing() and (data := await reader.read(1 << 18)):
                        for item in parser.feed(data):
                            if isinstance(item, PublishRun):
                                counted.add(item.payloads)
                                writer.write(encode_acks(PUBACK, item.packet_ids or []))
                            elif isinstance(item, SubAck):
                                self.connected.set()
                finally:
                    writer.close()
            await asyncio.sleep(0.2)

    async def publish(self, messages: int) -> None:
        """Publish so many with QoS 1, each until it is acknowledged."""
        done, waiting = 0, dict[int, int]()
        while done < messages:
            with contextlib.suppress(OSError):
                reader, writer, parser = await self._connection("")
                try:
                    for packet_id, number in waiting.items():
                        writer.write(_far_packet(number, packet_id, dup=True))
                    while not writer.is_closing() and (data := await reader.read(1 << 16)):
                        for item in parser.feed(data):
                            if isinstance(item, AckRun):
                                done += sum(waiting.pop(each, None) is not None for each in item.packet_ids)
                            elif isinstance(item, ConnAck):
                                self.connected.set()
                        self._fill(writer, waiting, done, messages)
                        await writer.drain()
                        if done == messages:
                            return
                finally:
                    writer.close()
            await asyncio.sleep(0.2)

    @staticmethod
    def _fill(writer: asyncio.StreamWriter, waiting: dict[int, int], done: int, messages: int) -> None:
        number = done + len(waiting)
        while len(waiting) < WINDOW and number < messages:
            packet_id = number % 60_000 + 1
            if packet_id in waiting:
                return
            waiting[packet_id] = number
            writer.write(_far_packet(number, packet_id, dup=False))
            number += 1


def _far_packet(number: int, packet_id: int, dup: bool) -> bytes:
    return encode_qos_run(V5, b"far/%d" % (number % TOPICS), [payload_of(number)], 1, [packet_id], False, dup)


class Faults:
    """What is done to a bridge, one after the other, as long as it is to go on."""

    def __init__(self, report: DriverReport, relay: Proxy, far: MosquittoSite, near: Target) -> None:
        self._report = report
        self._relay = relay
        self._far = far
        self._near = near
        self.done: dict[str, int] = {}

    async def cut(self) -> None:
        """The network."""
        self._relay.cut()

    async def restart_far(self) -> None:
        """The other broker."""
        await asyncio.to_thread(self._far.restart, 0.5)

    async def kill_bridge(self) -> None:
        """The bridge's process."""
        self._kill("bridges")

    async def kill_coordinator(self) -> None:
        """The coordinator's, which keeps its place."""
        self._kill("coordinators")

    def _kill(self, role: str) -> None:
        run = json.loads((self._near.log.parent / READY_FILE).read_text())
        for pid in run["pids"].get(role, []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def go_on(self, every_s: float) -> None:
        """Cuts, and now and then something heavier; runs until cancelled."""
        light: Callable[[], Awaitable[None]] = self.cut
        order = (light, light, self.restart_far, light, light, self.kill_bridge, light, light, self.kill_coordinator)
        while True:
            for fault in order:
                await asyncio.sleep(every_s)
                name = getattr(fault, "__name__", "fault")
                self.done[name] = self.done.get(name, 0) + 1
                await fault()


async def _run(report: DriverReport, near: Target, far: MosquittoSite, relay: Proxy) -> None:
    options = report.options
    messages, back = options.messages, options.messages // 10
    there, here, own = BridgeArrivals(messages), BridgeArrivals(back), BridgeArrivals(messages)
    reader, writer = FarClient(far.port, "bench-far-reader"), FarClient(far.port, "bench-far-writer")
    tasks = [asyncio.create_task(reader.read("near/#", there))]
    async with lexicast.connect(data_dir=data_dir(near)) as bus:
        for filter, counted in (("far/#", here), ("near/#", own)):
            tasks.append(asyncio.create_task(_count(bus, filter, counted)))
        await asyncio.wait_for(reader.connected.wait(), 30)
        faults = Faults(report, relay, far, near)
        tasks.append(asyncio.create_task(faults.go_on(options.fault_s)))
        publishing_back = asyncio.create_task(writer.publish(back))
        began = time.monotonic()
        for at in range(0, messages, PART):
            part = range(at, min(messages, at + PART))
            await bus.publish_many([(f"near/{number % TOPICS}", payload_of(number)) for number in part])
        await publishing_back
        tasks.pop().cancel()  # no more faults: what is left has to come
        while there.lost or here.lost or own.lost:
            await asyncio.sleep(0.2)
            if time.monotonic() - max(there.at, here.at, own.at) > QUIET_S:
                break
        took_s = time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    _tell(report, there, here, own, faults, took_s)


async def _count(bus: lexicast.Client, filter: str, counted: BridgeArrivals) -> None:
    async with bus.subscribe(filter, since="beginning") as subscription:
        while True:
            counted.add([message.payload for message in await subscription.next_batch()])


def _tell(
    report: DriverReport,
    there: BridgeArrivals,
    here: BridgeArrivals,
    own: BridgeArrivals,
    faults: Faults,
    took_s: float,
) -> None:
    lost, looped = there.lost + here.lost + own.lost, own.repeated
    report.figure("bridge_lost", lost)
    report.figure("bridge_looped", looped)
    report.figure("bridge_repeated", there.repeated + here.repeated)
    report.samples["faults"] = {"done": faults.done, "took_s": round(took_s, 1)}
    if lost or looped:
        report.problem(f"{lost} messages lost ({there.lost} out, {here.lost} in), {looped} looped")
    done = ", ".join(f"{count} x {name}" for name, count in faults.done.items())
    report.table(
        f"{there.messages:,} messages out and {here.messages:,} in, in {took_s:,.0f} s, through {done}",
        ["", "lost", "repeated", "looped"],
        [
            ["out", str(there.lost), str(there.repeated), str(looped)],
            ["in", str(here.lost), str(here.repeated), ""],
        ],
    )


def measure_faults(report: DriverReport, progress: reports.Steps, folder: Path, stack: ExitStack) -> None:
    """The whole story. Raises TargetMissingError, UnavailableError."""
    progress.step(f"{report.options.messages:,} messages through cuts and restarts")
    far = MosquittoSite(folder / "faults-far", keeps=True)
    stack.callback(lambda: far.stop())
    asyncio.run(_through(report, folder, stack, far))


async def _through(report: DriverReport, folder: Path, stack: ExitStack, far: MosquittoSite) -> None:
    async with Proxy(HOST, far.port) as relay:
        topics = "[{ filter = '#', direction = 'both' }]"
        text = bridge_text("bench", relay.port, topics)
        near = await asyncio.to_thread(start_bridged, folder / "faults-near", text)
        stack.callback(near.stop)
        await asyncio.to_thread(wait_connected, lambda: cluster_status(near), ["bench"])
        try:
            await _run(report, near, far, relay)
        except LexicastError:
            with contextlib.suppress(LexicastError):
                report.samples["status"] = await asyncio.to_thread(cluster_status, near)
            raise
        status = await asyncio.to_thread(cluster_status, near)
        report.samples["bridges"] = status["bridges"]
