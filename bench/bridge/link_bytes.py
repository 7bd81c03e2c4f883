"""Bytes of a bridge between two lexicast clusters, flights: compressed, in batches too, beside the same uncompressed.

Three bridges lead from one cluster to the other at the same time, each through a proxy of its own that counts what the
sockets carry, both ways: so all of them carry the same messages, and acknowledgements, dictionaries and batches' heads
count.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import lexicast
from lexicast.cluster.errors import UnavailableError

from .. import report as reports
from ..data.flights import Event, prepare_flights
from ..report import DriverReport
from ..stage.clusters import cluster_status, data_dir
from ..stage.proxy import Proxy
from ..stage.servers import Target
from .sites import HOST, bridge_text, start_bridged, wait_connected

BRIDGES: Final = {
    "plain": "compress = false",
    "compressed": "compress = true",
    "batched": "compress = true\nbatch_s = 0.1",
}
RATE_PER_S: Final = 2_000
LATE_S: Final = 60.0


def measure_bytes(report: DriverReport, progress: reports.Steps, folder: Path, stack: ExitStack) -> None:
    """The figures. Raises UnavailableError, UsageError."""
    progress.step(f"{report.options.flights:,} flights between two clusters")
    far = start_bridged(folder / "far", "", "")
    stack.callback(far.stop)
    asyncio.run(_measure(report, folder, stack, far))


async def _measure(report: DriverReport, folder: Path, stack: ExitStack, far: Target) -> None:
    proxies = {name: Proxy(HOST, far.address.port) for name in BRIDGES}
    try:
        ports = {name: await proxy.start() for name, proxy in proxies.items()}
        text = "\n".join(
            bridge_text(name, ports[name], f"[{{ filter = '#', remote = '{name}/' }}]", fields)
            for name, fields in BRIDGES.items()
        )
        near = await asyncio.to_thread(start_bridged, folder / "near-cluster", text)
        stack.callback(near.stop)
        await asyncio.to_thread(wait_connected, lambda: cluster_status(near), list(BRIDGES))
        replay = await asyncio.to_thread(prepare_flights, report.options.flights, folder / "flights")
        payload_bytes = await _replay(near, far, replay.events)
        carried = {n: p.counters.to_server + p.counters.to_client for n, p in proxies.items()}
    finally:
        for proxy in proxies.values():
            await proxy.stop()
    for name in ("compressed", "batched"):
        suffix = "" if name == "compressed" else "_batched"
        report.figure(f"bridge_bytes_ratio{suffix}", carried[name] / carried["plain"])
    count = len(replay.events)
    report.samples["bytes"] = {"messages": count, "payload_bytes": payload_bytes, **carried}
    rows = [
        [name, f"{bytes / count:,.1f}", reports.format_number(bytes / carried["plain"], 3)]
        for name, bytes in carried.items()
    ]
    report.table(f"{count:,} flights, {payload_bytes / count:,.0f} B each", ["bridge", "bytes each", "of plain"], rows)


async def _replay(near: Target, far: Target, events: list[Event]) -> int:
    """Publish all of them here, at RATE_PER_S; returns, with the bytes of their payloads, when all have come there."""
    size = 0
    async with (
        lexicast.connect(data_dir=data_dir(near)) as here,
        lexicast.connect(data_dir=data_dir(far)) as there,
        there.subscribe([f"{name}/#" for name in BRIDGES]) as subscription,
    ):
        arriving = asyncio.create_task(_arrive(subscription, len(events) * len(BRIDGES)))
        began, part = time.monotonic(), RATE_PER_S // 20
        for at in range(0, len(events), part):
            some = events[at : at + part]
            pairs = [(event.topic, event.payload) for event in some]
            size += sum(len(payload) for _, payload in pairs)
            await here.publish_many(pairs)
            await asyncio.sleep(max(0.0, began + at / RATE_PER_S - time.monotonic()))
        try:
            await asyncio.wait_for(arriving, LATE_S)
        except TimeoutError:
            raise UnavailableError("not all flights have come to the other cluster") from None
    return size


async def _arrive(subscription: lexicast.Subscription, count: int) -> None:
    while count > 0:
        count -= len(await subscription.next_batch())
