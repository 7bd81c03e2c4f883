"""Broker memory of 10,000 connected subscribers, each with a subscription of its own, beside peers.

Each round starts a fresh broker (memory that an earlier round freed would be used again and hide the cost), opens and
closes one session, reads RssAnon (private memory, from /proc), opens all sessions (each confirmed by CONNACK and
SUBACK), reads again when it has stopped growing, and divides. Then one message goes to each subscription's own topic,
and each must arrive. Targets run one after the other.

`connection_kib` counts the processes that hold the connections (lexicast's brokers); `connection_kib_all` counts every
process that the target started. With `--transport ws` they come over WebSocket (Mosquitto over TCP where it was built
without) and the figures begin with `ws_`.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from lexicast.cluster.errors import PeerError, UsageError

from . import report as reports
from .peers.loadgen import LOST_AFTER_S, READ_BYTES, DeliveryError, sequence_payload
from .peers.session_opening import SessionSpec, close_all, open_sessions, raise_open_files
from .peers.targets import running
from .peers.wire import Wire, wire_of
from .report import DriverReport
from .stage.servers import Target

IN_FLIGHT = 500
"""Messages of the final check that are under way at a time."""

SETTLE_TIMEOUT_S = 15.0


def settled_kib(target: Target, role: str | None = "brokers") -> int:
    """RssAnon when five readings, 0.2 s apart, differ by less than 0.5%; the last one after `SETTLE_TIMEOUT_S`."""
    readings = [target.private_kib(role)]
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        readings = [*readings[-4:], target.private_kib(role)]
        if len(readings) == 5 and max(readings) - min(readings) < 0.005 * max(readings):
            break
    return readings[-1]


def own_topic(number: int) -> str:
    """The topic of subscriber `number`."""
    return f"bench/connection/{number}"


def deliver_to_each(wire: Wire, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
    """Publishes one message to each subscriber's own topic; raises `DeliveryError` unless each gets exactly its own."""
    epoll = select.epoll()
    numbers = {sock.fileno(): number for number, sock in enumerate(subscribers)}
    for sock in subscribers:
        epoll.register(sock, select.EPOLLIN)
    waiting, sent = set(numbers.values()), 0
    try:
        while waiting:
            while sent < len(subscribers) and sent - (len(subscribers) - len(waiting)) < IN_FLIGHT:
                # Some hundred bytes at a time with a bounded number under way: the socket buffer always takes them.
                publisher.send(wire.publish(own_topic(sent), sequence_payload(sent, 140), 0))
                sent += 1
            ready = epoll.poll(LOST_AFTER_S)
            if not ready:
                raise DeliveryError(f"{len(waiting)} of {len(subscribers)} subscribers did not get their message")
            for descriptor, _ in ready:
                waiting.remove(_own_message(wire, subscribers[numbers[descriptor]], numbers[descriptor], waiting))
    finally:
        epoll.close()


def _own_message(wire: Wire, sock: socket.socket, number: int, waiting: set[int]) -> int:
    data = sock.recv(READ_BYTES)
    packet = wire.next_packet(data)
    if packet is None or not packet.is_message or packet.length != len(data) or number not in waiting:
        raise DeliveryError(f"subscriber {number} got something else than its one message: {data[:60]!r}")
    if sequence_payload(number, 140) not in data:
        raise DeliveryError(f"subscriber {number} got another subscriber's message: {data[:60]!r}")
    return number


def measure_target(target: Target, report: DriverReport, progress: reports.Steps) -> dict[str, Any]:
    """One round against one fresh broker; KiB a connection before and after the deliveries, and seconds to open."""
    options = report.options
    wire = wire_of(target.address.protocol, options.mqtt_version)
    close_all(open_sessions(target.address, wire, [SessionSpec("bench-warm", "bench/warm")]), wire.goodbye())
    before, before_all = settled_kib(target), target.private_kib(None)
    specs = [SessionSpec(f"bench-connection-{number}", own_topic(number)) for number in range(options.connections)]
    started = time.perf_counter()
    sockets = open_sessions(
        target.address,
        wire,
        [*specs, SessionSpec("bench-publisher")],
        in_flight=options.in_flight,
        rate_per_s=options.connect_rate,
        timeout_s=options.open_timeout,
    )
    opened_s = time.perf_counter() - started
    try:
        progress.step(f"{target.name}: {options.connections} connections are open, reading memory, delivering")
        after, after_all = settled_kib(target), target.private_kib(None)
        deliver_to_each(wire, sockets[-1], sockets[:-1])
        delivered = settled_kib(target)
    finally:
        close_all(sockets, wire.goodbye())
    return {
        "kib": (after - before) / options.connections,
        "kib_all": (after_all - before_all) / options.connections,
        "kib_after_delivery": (delivered - before) / options.connections,
        "base_kib": before,
        "opened_s": round(opened_s, 3),
    }


def measure(report: DriverReport) -> None:
    """Measures each target by itself."""
    options = report.options
    if options.connections < 100:
        raise UsageError("--connections must be at least 100: fewer disappear in the noise of the allocator")
    raise_open_files(options.connections + 200)
    reports.by_websocket(options)
    names = options.targets.split(",")
    with reports.Steps(report.console, 2 * len(names) * options.rounds) as progress:
        for _ in range(options.rounds):
            for name in names:
                _round(report, progress, name)
    _figures(report, names)


def _round(report: DriverReport, progress: reports.Steps, name: str) -> None:
    missing = report.missing if name not in report.samples else lambda *told: None
    rounds = report.samples.setdefault(name, [])
    progress.step(f"{name}: starting, opening {report.options.connections} connections")
    with running([name], missing, websocket=report.options.transport == "ws") as targets:
        for target in targets.values():
            try:
                rounds.append(measure_target(target, report, progress))
            except PeerError as error:
                report.problem(f"{name}: {error}")


def _figures(report: DriverReport, names: Sequence[str]) -> None:
    def median(name: str, key: str) -> float | None:
        return reports.median([one[key] for one in report.samples.get(name, [])])

    prefix = "ws_" if report.options.transport == "ws" else ""
    report.figure(f"{prefix}connection_kib", median("lexicast", "kib"))
    report.figure(f"{prefix}connection_kib_all", median("lexicast", "kib_all"))
    rows = []
    for name in names:
        for key in ("kib", "kib_all", "kib_after_delivery"):
            report.figure(f"{prefix}connection_{key}_{name}", median(name, key))
        cells = [median(name, key) for key in ("kib", "kib_all", "kib_after_delivery", "opened_s")]
        rows.append([name, *(reports.format_number(cell) for cell in cells)])
    columns = ["target", "KiB each", "all processes", "after a delivery each", "seconds to open"]
    report.table(f"{report.options.connections} subscribers, each with its own subscription", columns, rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("connections", __doc__, default_targets=reports.ALL_PEERS)
    parser.set_defaults(rounds=1)
    parser.add_argument("--connections", type=reports.positive, help="default 10000; quick 3000")
    parser.add_argument("--connect-rate", type=float, default=4_000.0, help="new connections a second at most")
    parser.add_argument("--in-flight", type=reports.positive, default=200, help="handshakes under way at a time")
    parser.add_argument("--open-timeout", type=float, default=300.0, help="seconds for all of them (default 300)")
    reports.add_transport(parser)
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    options.connections = options.connections or (3_000 if options.quick else 10_000)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.connections`; returns the exit code."""
    return reports.drive("connections", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
