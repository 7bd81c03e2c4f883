"""The fleet's hour, compressed: what a message of a device costs in the log, and whether everybody gets everything.

Devices (2,000; quick 300) with persistent MQTT 3.1.1 sessions publish JSON telemetry of about 278 B every few seconds
with QoS 1. Each disconnects about once a minute, half of them by breaking the connection, and comes back some seconds
later. Commands (QoS 1) go to devices whether they are there or not. A dashboard is subscribed to everything by one
wildcard and keeps account: complete, in order for each device, without repeats, every will once. At the end the history
is asked for all telemetry, by `lexicast history`.

`fleet_log_bytes`: bytes on disk that the coordinators' logs have grown by for each telemetry message, everything
included: `fleet_telemetry_payload_bytes`, `fleet_telemetry_meta_bytes` (topic, publisher, times, checksums),
`fleet_session_bytes` (session control records) and `fleet_other_bytes` (wills, commands, subscriptions, dictionaries,
slack of pages) are its parts. `fleet_store_bytes` counts the tables and the index as well. The rates are those of real
devices, so the parts are what an hour would give, but dictionaries, which cost less the longer it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from lexicast.cluster.errors import PeerError, UsageError

from .. import report as reports
from ..peers import targets
from ..peers.session_opening import raise_open_files
from ..report import DriverReport
from ..stage.clusters import data_dir, lexicast_command
from ..stage.parts import Part, Stage
from ..stage.servers import Target, cpu_s
from .device_connection import DeviceConnection, FleetDelivery, dial_broker
from .log_bytes import META, OTHER, PAYLOAD, SESSIONS, LogBytes, measure_log
from .telemetry import FILTER, NumberedAccount, device_and_number, device_topic, numbered

OPEN_TIMEOUT_S: Final = 300.0
SETTLE_TIMEOUT_S: Final = 120.0
# Sessions save their cursors a second after the last message at the latest.
SAVES_S: Final = 3.0
PROGRESS_S: Final = 10.0
KEYS: Final = {
    PAYLOAD: "fleet_telemetry_payload_bytes",
    META: "fleet_telemetry_meta_bytes",
    SESSIONS: "fleet_session_bytes",
    OTHER: "fleet_other_bytes",
}


@dataclass
class Dashboard:
    """What the wildcard subscriber got."""

    telemetry: NumberedAccount = field(default_factory=NumberedAccount)
    wills: NumberedAccount = field(default_factory=NumberedAccount)
    commands: int = 0

    def on_delivery(self, delivery: FleetDelivery) -> None:
        """A publication of the fleet."""
        kind = delivery.topic.rpartition(b"/")[2]
        if kind == b"command":
            self.commands += 1
            return
        account = self.telemetry if kind == b"telemetry" else self.wills
        account.take(*device_and_number(delivery.payload))


class Commander:
    """Commands to devices, whether they are there or not."""

    def __init__(self, connection: DeviceConnection, options: argparse.Namespace) -> None:
        self._connection = connection
        self._options = options
        self._random = random.Random(f"commands {options.seed}")
        self._numbers = [0] * options.devices

    @property
    def sent(self) -> int:
        """So far."""
        return sum(self._numbers)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(1 / self._options.commands)
            device = self._random.randrange(self._options.devices)
            number, self._numbers[device] = self._numbers[device], self._numbers[device] + 1
            command = numbered(device, number, set={"period": self._random.randrange(1, 60), "mode": "eco"})
            self._connection.publish(device_topic(device, "command"), command)


@dataclass(frozen=True)
class FleetOutcome:
    """What the fleet did and who got it."""

    told: dict[str, int]
    dashboard: Dashboard
    commands: int
    history: NumberedAccount
    history_s: float
    log: LogBytes
    cpu_s: dict[str, float]
    seconds: float

    @property
    def published(self) -> int:
        """Telemetry messages."""
        return self.told["published"]

    def faults(self) -> list[str]:
        """Everything that is not as promised, in words."""
        told, telemetry, wills = self.told, self.dashboard.telemetry, self.dashboard.wills
        counts = {
            "telemetry messages lost to the dashboard": telemetry.lost(self.published),
            "telemetry messages out of order at the dashboard": telemetry.out_of_order,
            "telemetry messages repeated to the dashboard": telemetry.repeats,
            "wills lost to the dashboard": told["wills"] - (wills.taken - wills.repeats),
            "wills repeated to the dashboard": wills.repeats,
            "commands lost to the dashboard": self.commands - self.dashboard.commands,
            "commands lost to devices": self.commands - told["commands_taken"] + told["commands_repeats"],
            "commands out of order at devices": told["commands_out_of_order"],
            "commands repeated to devices": told["commands_repeats"],
            "telemetry messages lost to the history": self.history.lost(self.published),
            "telemetry messages out of order in the history": self.history.out_of_order,
            "telemetry messages repeated in the history": self.history.repeats,
        }
        return [f"{count} {what}" for what, count in counts.items() if count]


class Hour:
    """The fleet's hour against one cluster."""

    def __init__(self, target: Target, report: DriverReport, progress: Callable[[str], None]) -> None:
        self._target = target
        self._data_dir = data_dir(target)
        self._options = report.options
        self._progress = progress
        self._dashboard = Dashboard()

    async def run(self) -> FleetOutcome:
        """Raises PeerError when something dies, or does not come to its end."""
        async with AsyncExitStack() as stack, Stage(self._target.log.parent) as stage:
            dashboard = await self._client(stack, "dashboard", self._dashboard.on_delivery)
            await dashboard.subscribe(FILTER)
            commander = Commander(await self._client(stack, "commander", lambda delivery: None), self._options)
            self._progress(f"{self._options.devices} devices connect")
            parts = [await self._part(stage, number) for number in range(self._options.processes)]
            for part in parts:
                await part.wait_for("ready", OPEN_TIMEOUT_S)
            await asyncio.sleep(SAVES_S)
            before, cpu_before, started = measure_log(self._data_dir), self._cpu_s(), time.monotonic()
            for part in parts:
                part.order(f"go {time.monotonic_ns()}")
            await self._live(parts, commander)
            told = await self._settled(parts, commander)
            await dashboard.leave()  # else it would take the wills of devices that this driver ends
            seconds = time.monotonic() - started
            cpu = {role: spent - cpu_before[role] for role, spent in self._cpu_s().items()}
            await asyncio.sleep(SAVES_S)
            log = measure_log(self._data_dir).since(before)
            self._progress(f"{told['published']} messages: the history is asked for all of them")
            asked = time.monotonic()
            history = await self._history()
            return FleetOutcome(
                told, self._dashboard, commander.sent, history, time.monotonic() - asked, log, cpu, seconds
            )

    async def _client(
        self, stack: AsyncExitStack, name: str, on_delivery: Callable[[FleetDelivery], None]
    ) -> DeviceConnection:
        address = self._target.address
        connection = await dial_broker(address.host, address.port, on_delivery)
        stack.push_async_callback(connection.drop)
        await connection.open(name, clean=True)
        return connection

    async def _part(self, stage: Stage, number: int) -> Part:
        options = self._options
        share = -(-options.devices // options.processes)
        first = number * share
        told = {"port": self._target.address.port, "first": first, "devices": min(share, options.devices - first)}
        told |= {"seed": options.seed, "period": options.period, "connected": options.connected}
        arguments = [word for name, value in told.items() for word in (f"--{name}", str(value))]
        part = stage.part(f"devices-{number}", "lexicast.bench.fleet.devices", arguments)
        await part.start()
        return part

    async def _live(self, parts: Sequence[Part], commander: Commander) -> None:
        commanding = asyncio.create_task(commander.run())
        try:
            left_s = self._options.seconds
            while left_s > 0:
                counted = f"{_sum(parts, 'published')} messages, {_sum(parts, 'connects')} connections"
                self._progress(f"{left_s:.0f} s of the hour are left: {counted}")
                await asyncio.sleep(min(PROGRESS_S, left_s))
                left_s -= PROGRESS_S
                self._alive(parts)
        finally:
            commanding.cancel()
            await asyncio.wait([commanding])

    def _alive(self, parts: Sequence[Part]) -> None:
        self._target.require_alive()
        for part in parts:
            part.require_alive()

    async def _settled(self, parts: Sequence[Part], commander: Commander) -> dict[str, int]:
        """What the devices have done, once everything has come to where it goes, or no more does."""
        self._progress("the end: those who are away come back")
        for part in parts:
            part.order("finish")
        for part in parts:
            await part.wait_for("settled", SETTLE_TIMEOUT_S)
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < until and not self._arrived(parts, commander):
            await asyncio.sleep(0.2)
            self._alive(parts)
        await asyncio.sleep(1.0)  # a repeat would come within this
        names = [name for name, value in parts[0].state.items() if type(value) is int]
        return {name: _sum(parts, name) for name in names}

    def _arrived(self, parts: Sequence[Part], commander: Commander) -> bool:
        dashboard = self._dashboard
        return (
            dashboard.telemetry.taken >= _sum(parts, "published")
            and dashboard.wills.taken >= _sum(parts, "wills")
            and dashboard.commands >= commander.sent
            and _sum(parts, "commands_taken") >= commander.sent
        )

    async def _history(self) -> NumberedAccount:
        command = lexicast_command("history", "fleet/+/+/telemetry", "--data-dir", str(self._data_dir))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
        account = NumberedAccount()
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                account.take(*device_and_number(line))
            if await process.wait():
                raise PeerError(f"lexicast history ended with code {process.returncode}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return account

    def _cpu_s(self) -> dict[str, float]:
        return {role: sum(map(cpu_s, pids)) for role, pids in self._target.pids.items()}


def _sum(parts: Sequence[Part], name: str) -> int:
    return sum([part.state.get(name, 0) for part in parts])


def measure(report: DriverReport) -> None:
    """One hour against one fresh cluster."""
    options = report.options
    if options.targets != "lexicast":
        raise UsageError("--targets: the log that is measured is lexicast's")
    raise_open_files(options.devices + 200)
    steps = 4 + -(-int(options.seconds) // int(PROGRESS_S))
    with reports.Steps(report.console, steps) as progress, targets.running(["lexicast"], report.missing) as running:
        outcome = asyncio.run(Hour(running["lexicast"], report, progress.step).run())
    for fault in outcome.faults():
        report.problem(fault)
    tell(report, outcome)


def tell(report: DriverReport, outcome: FleetOutcome) -> None:
    """Tables, samples, figures."""
    messages = max(outcome.published, 1)
    _tell_log(report, outcome.log, messages)
    told, telemetry, wills = outcome.told, outcome.dashboard.telemetry, outcome.dashboard.wills
    raw = told["payload_bytes"] / messages
    rows = [
        ["telemetry", messages, f"{telemetry.taken:,}", telemetry.out_of_order, telemetry.repeats],
        ["wills", told["wills"], f"{wills.taken:,}", wills.out_of_order, wills.repeats],
        [
            "commands",
            outcome.commands,
            f"{told['commands_taken']:,}",
            told["commands_out_of_order"],
            told["commands_repeats"],
        ],
        ["history", messages, f"{outcome.history.taken:,}", outcome.history.out_of_order, outcome.history.repeats],
    ]
    title = (
        f"{report.options.devices} devices, {outcome.seconds:.0f} s, {raw:.0f} B a message; "
        f"{told['connects']:,} connects, {told['resumed']:,} of them resumed a session"
    )
    columns = ["", "sent", "taken", "out of order", "repeats"]
    report.table(
        title, columns, [[str(cell) if type(cell) is not int else f"{cell:,}" for cell in row] for row in rows]
    )
    report.samples = {"told": told, "cpu_s": outcome.cpu_s, "log": outcome.log._asdict()}
    report.figure("fleet_messages", messages)
    report.figure("fleet_messages_per_s", messages / outcome.seconds)
    report.figure("fleet_payload_bytes", raw)
    complete = telemetry.lost(messages) == 0 == outcome.commands - told["commands_taken"] + told["commands_repeats"]
    report.figure("fleet_complete", complete and told["wills"] == wills.taken - wills.repeats)
    report.figure("fleet_ordered", not (telemetry.out_of_order or told["commands_out_of_order"]))
    report.figure("fleet_repeats", telemetry.repeats + wills.repeats + told["commands_repeats"])
    report.figure("fleet_commands_sent_again", told["sent_again"])
    history = outcome.history
    report.figure("fleet_history_complete", not (history.lost(messages) or history.out_of_order or history.repeats))
    report.figure("fleet_history_s", outcome.history_s)
    for role, spent in outcome.cpu_s.items():
        report.figure(f"fleet_cpu_us_{role}", spent / messages * 1e6)


def _tell_log(report: DriverReport, log: LogBytes, messages: int) -> None:
    report.figure("fleet_log_bytes", log.log / messages)
    for kind, size in log.parts().items():
        report.figure(KEYS[kind], size / messages)
    report.figure("fleet_store_bytes", log.store / messages)
    rows = [
        [kind, f"{log.records[kind]:,}", reports.format_number(size / messages, 1)]
        for kind, size in sorted(log.kinds.items(), key=lambda item: -item[1])
    ]
    rows.append(["pages' slack and tree", "", reports.format_number((log.log - sum(log.kinds.values())) / messages, 1)])
    rows.append(["the log", "", reports.format_number(log.log / messages, 1)])
    rows.append(["tables and index", "", reports.format_number((log.store - log.log) / messages, 1)])
    report.table("Bytes of log a telemetry message", ["kind", "records", "bytes a message"], rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("fleet", __doc__, default_targets="lexicast")
    parser.set_defaults(rounds=1)
    parser.add_argument("--devices", type=reports.positive, help="default 2000; quick 300")
    parser.add_argument("--seconds", type=float, help="how long they live (default 180; quick 25)")
    parser.add_argument("--period", type=float, default=5.0, help="seconds between messages of a device (default 5)")
    parser.add_argument("--connected", type=float, default=60.0, help="seconds that a device stays (default 60)")
    parser.add_argument("--commands", type=float, default=20.0, help="commands a second (default 20)")
    parser.add_argument("--processes", type=reports.positive, default=2, help="of devices (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of values, lives and commands (default 1)")
    options = parser.parse_args(argv)
    options.devices = options.devices or (300 if options.quick else 2_000)
    options.seconds = options.seconds or (25.0 if options.quick else 180.0)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fleet`; returns the exit code."""
    return reports.drive("fleet", parse(argv), measure)
