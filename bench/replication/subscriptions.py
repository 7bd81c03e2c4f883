"""Sessions with a wildcard each on a cluster with two copies: what their subscriptions cost, and a leader's loss."""

from __future__ import annotations

import os
import signal
import time
from array import array
from collections.abc import Callable
from typing import Any, Final

from lexicast.cluster.errors import UnavailableError

from .. import report as reports
from ..peers.loadgen import DeliveryError
from ..report import DriverReport
from ..resume.clients import Crowd, ResumingClient, numbered_payload, publish_all, subscribe_packet
from ..stage.clusters import cluster_status
from ..stage.servers import Target

OPENING: Final = 100
HEAL_S: Final = 120.0
ASK_S: Final = 0.5
COPIES: Final = 2


class Devices:
    """Persistent sessions that stay connected, each with the filter `devices/N/#`; the turns that each has got."""

    def __init__(self, target: Target, count: int) -> None:
        self._crowd = Crowd(target.address)
        self._count = count
        self._got = [array("I") for _ in range(count)]
        self._publisher = self._crowd.connect("replication-publisher", True)
        self._crowd.until_answered(self._publisher, 1)

    def subscribe(self) -> None:
        """Open all, some at a time."""
        opening: dict[int, ResumingClient] = {}
        number = 0
        while number < self._count or opening:
            while number < self._count and len(opening) < OPENING:
                client = self._crowd.connect(f"replication-{number}", False, self._taker(number))
                client.send(subscribe_packet([f"devices/{number}/#"]))
                opening[number] = client
                number += 1
            self._crowd.turn()
            opening = {n: c for n, c in opening.items() if c.answered < COPIES}

    def _taker(self, number: int) -> Callable[[bytes, list[int], bool], None]:
        return lambda topic, numbers, retained: self._got[number].extend(numbers)

    def publish(self, turn: int) -> float:
        """A publication to each; seconds until every one has got it. Raises DeliveryError."""
        began_s = time.perf_counter()
        payload = numbered_payload(turn)
        publish_all(self._crowd, self._publisher, ((f"devices/{n}/state", payload) for n in range(self._count)))
        self._crowd.until(lambda: all([len(got) > turn for got in self._got]), "a publication to each session")
        took_s = time.perf_counter() - began_s
        if any([got.tolist() != list(range(turn + 1)) for got in self._got]):
            raise DeliveryError("a session did not get each publication once and in order")
        return took_s

    def close(self) -> None:
        """End the sessions."""
        self._crowd.close()


def healed(target: Target) -> dict[str, Any]:
    """The cluster's status when all coordinators serve and every group has two copies. Raises UnavailableError."""
    until_s = time.monotonic() + HEAL_S
    while time.monotonic() < until_s:
        told = cluster_status(target)
        members = {len(in_sync) for _, _, in_sync in told["coordination"].get("group_states", {}).values()}
        if members == {COPIES} and all("store" in each for each in told["coordinators"].values()):
            return told
        time.sleep(ASK_S)
    raise UnavailableError(f"not every group has two copies again after {HEAL_S:.0f} s")


def log_bytes(told: dict[str, Any]) -> int:
    """Bytes of all logs, every copy of them."""
    return sum([int(each["store"]["log_bytes"]) for each in told["coordinators"].values()])


def measure_subscriptions(report: DriverReport, progress: reports.Steps, target: Target) -> None:
    """`subscribe_log_bytes`, `resubscribe_s`, and what the same takes without a loss."""
    options = report.options
    progress.step(f"{options.sessions:,} sessions subscribe")
    before = log_bytes(healed(target))
    devices = Devices(target, options.sessions)
    found: dict[str, list[float]] = {"unhurt_s": [], "hurt_s": []}
    try:
        devices.subscribe()
        report.figure("subscribe_log_bytes", (log_bytes(cluster_status(target)) - before) / options.sessions)
        turn = 0
        for loss in range(options.losses):
            progress.step(f"loss {loss + 1}: all are served")
            members = healed(target)["coordination"]["members"]["coordinator"]
            found["unhurt_s"].append(devices.publish(turn))
            progress.step(f"loss {loss + 1}: a leader is killed")
            os.kill(members[sorted(members)[loss % len(members)]]["pid"], signal.SIGKILL)
            found["hurt_s"].append(devices.publish(turn + 1))
            turn += 2
    finally:
        devices.close()
    report.samples["subscriptions"] = found
    report.figure("resubscribe_s", max(found["hurt_s"]))
    report.figure("resubscribe_median_s", reports.median(found["hurt_s"]))
    report.figure("resubscribe_unhurt_s", reports.median(found["unhurt_s"]))
    row = [f"{options.sessions:,}", *(f"{report.figures[key]:,.2f}" for key in _COLUMNS)]
    report.table("Sessions with a wildcard each, two copies", ["sessions", *_COLUMNS.values()], [row])


_COLUMNS: Final = {
    "subscribe_log_bytes": "log a subscription, B",
    "resubscribe_unhurt_s": "all served, s: no loss",
    "resubscribe_median_s": "a leader killed: median",
    "resubscribe_s": "longest",
}
