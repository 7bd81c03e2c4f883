"""What topic aliases spare a live link, and what they cost the fan-out.

    alias_saving         the part of a link's bytes that they spare: two dictionary-aware clients of one broker, one of
                         which takes aliases, get the telemetry of a fleet (JSON of 278 B, a topic of 36 a device, one
                         message a write), compressed as they get it by default; counted from the second half on, when
                         both have what they need
    alias_fanout_ratio   the least, over numbers of subscribers, of deliveries/s with aliases over those without, of one
                         cluster in turns (MQTT 5, plain clients)

All bytes are MQTT's, without TCP's.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import lexicast.mqtt as aware
from lexicast.cluster.errors import UnavailableError

from . import report as reports
from .contest import Scenario, add_run_options, contest, set_lengths
from .fanout import WINDOW_LADDER
from .fleet.telemetry import Sensors, device_topic
from .peers.aliased_load import AliasWire, OpenAliased
from .peers.loadgen import Load, OpenLoad
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.wire import Wire
from .report import DriverReport
from .stage.clients import close_client, make_client
from .stage.servers import Address, Target

SUBSCRIBERS: Final = (1, 100)
ALIASED: Final = "mqtt with aliases"
QUICK_S: Final = (0.3, 0.15)
SEED: Final = 1
WAIT_S: Final = 60.0
# Messages under way: a broker that is behind would put several into a batch, which devices' traffic does not.
UNDER_WAY: Final = 20


class CountingClient(aware.Client):
    """A dictionary-aware client that counts what its connection brings; `aliases`: how many it takes."""

    def __init__(self, name: str, aliases: int) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=name)
        self.received_bytes = 0
        self.received = 0
        self.on_message = self._count
        self.subscribed = threading.Event()
        self.on_subscribe = lambda *_: self.subscribed.set()
        untyped: Any = Properties  # paho does not annotate its constructor
        self._terms = untyped(PacketTypes.CONNECT)
        self._terms.TopicAliasMaximum = aliases

    def open(self, address: Address, topic_filter: str) -> None:
        """Connect and subscribe. Raises UnavailableError."""

        def on_connect(*_: Any) -> None:
            self.subscribe(topic_filter)

        self.on_connect = on_connect
        self.connect(address.host, address.port, properties=self._terms)
        self.loop_start()
        if not self.subscribed.wait(WAIT_S):
            raise UnavailableError("a client was not subscribed in time")

    def _count(self, *_: Any) -> None:
        self.received += 1

    def _sock_recv(self, bufsize: int) -> bytes:
        data: bytes = super()._sock_recv(bufsize)
        self.received_bytes += len(data)
        return data


def measure_saving(report: DriverReport, address: Address) -> None:
    """A fleet's telemetry to both."""
    options = report.options
    clients = {"without": CountingClient("bench-without", 0), "with": CountingClient("bench-with", 65_535)}
    publisher = make_client("bench-fleet", is_aware=False)
    publisher.connect(address.host, address.port)
    publisher.loop_start()
    for each in clients.values():
        each.open(address, "fleet/#")
    devices = [Sensors(number, SEED) for number in range(options.devices)]
    marks: dict[str, tuple[int, int]] = {}
    for number in range(options.each):
        if number == options.each // 2:
            _arrived(clients, number * options.devices)
            marks = {name: (each.received_bytes, each.received) for name, each in clients.items()}
        for device, sensors in enumerate(devices):
            publisher.publish(device_topic(device, "telemetry"), sensors.message(1.7e9 + 10 * number))
            _arrived(clients, number * options.devices + device - UNDER_WAY)
    _arrived(clients, options.each * options.devices)
    mean = {
        name: (each.received_bytes - marks[name][0]) / (each.received - marks[name][1])
        for name, each in clients.items()
    }
    for client in (publisher, *clients.values()):
        close_client(client)
    report.samples["bytes_a_message"] = mean
    report.figure("alias_saving", 1 - mean["with"] / mean["without"])
    cells = [reports.format_number(mean[name], 1) for name in ("without", "with")]
    title = f"bytes a message on a live link, {options.devices} devices, {options.each} messages each"
    report.table(title, ["", "without", "with"], [["dictionary-aware", *cells]])


def _arrived(clients: dict[str, CountingClient], count: int) -> None:
    """Wait until all have so many. Raises UnavailableError."""
    until_s = time.monotonic() + WAIT_S
    while any(each.received < count for each in clients.values()):
        if time.monotonic() > until_s:
            raise UnavailableError(f"of {count} messages {[each.received for each in clients.values()]} have arrived")
        time.sleep(0.0002)


def _opened(count: int, payload: int, verify: bool, address: Address, wire: Wire) -> OpenLoad:
    kind = "aliased" if address.protocol == ALIASED else "plain"
    load = Load(f"fanout_{count}_{kind}_with_a_topic_like_others", count, payload, verify=verify)
    return OpenAliased(address, AliasWire(), load) if kind == "aliased" else OpenLoad(address, wire, load)


def measure_fan_out(report: DriverReport, progress: reports.Steps, target: Target) -> None:
    """The same cluster, with aliases and without, in turns."""
    options = report.options
    aliased = replace(target, name="aliases", address=replace(target.address, protocol=ALIASED))
    rows, ratios = [], []
    for count in SUBSCRIBERS:
        ladder = WINDOW_LADDER[max(size for size in WINDOW_LADDER if size <= count)]
        opened = partial(_opened, count, options.payload, options.verify)
        contest(report, progress, [target, aliased], Scenario(f"alias_fanout_{count}", opened, 0, count, ladder))
        rates = {name: told["deliveries_per_s"] for name, told in report.samples[f"alias_fanout_{count}"].items()}
        ratios.append(reports.median_ratio(rates.get("aliases"), rates.get("lexicast")))
        report.figure(f"alias_fanout_{count}_ratio", ratios[-1])
        told = [reports.format_rate(reports.median(rates.get(name, ()))) for name in ("lexicast", "aliases")]
        rows.append([str(count), *told, reports.format_number(ratios[-1])])
    known = [ratio for ratio in ratios if ratio is not None]
    report.figure("alias_fanout_ratio", min(known) if len(known) == len(SUBSCRIBERS) else None)
    report.table(f"deliveries/s, {options.payload} B", ["subscribers", "without", "with", "with / without"], rows)


def measure(report: DriverReport) -> None:
    """Both."""
    raise_open_files(2 * max(SUBSCRIBERS) + 200)
    steps = 1 + len(SUBSCRIBERS) * (1 + report.options.rounds)
    with running(["lexicast"], report.missing) as targets, reports.Steps(report.console, steps) as progress:
        progress.step("a fleet's telemetry")
        measure_saving(report, targets["lexicast"].address)
        measure_fan_out(report, progress, targets["lexicast"])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; seconds left out follow from the mode."""
    parser = reports.parser("aliases", __doc__, default_targets="lexicast")
    parser.add_argument("--devices", type=reports.positive, default=100, help="of the fleet (default 100)")
    parser.add_argument("--each", type=reports.positive, help="messages a device (default 200; quick 40)")
    parser.add_argument("--verify", action="store_true", help="check every sequence number (slower generator)")
    add_run_options(parser, *QUICK_S)
    options = set_lengths(parser.parse_args(argv), *QUICK_S)
    options.mqtt_version = 5
    options.each = options.each or (40 if options.quick else 200)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.aliases`; returns the exit code."""
    return reports.drive("aliases", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
