"""TLS beside none, and beside Mosquitto with TLS: fan-out, and the memory of a connection.

    tls_fanout_ratio             the least, over numbers of subscribers, of deliveries/s with TLS over those without,
                                 of one cluster through its two ports in turns
    tls_fanout_N_vs_mosquitto    deliveries/s to N subscribers with TLS over Mosquitto's with TLS, in turns
    tls_connection_kib           private memory (RssAnon) of the broker a connection with TLS that has subscribed
    tls_connect_us               CPU of the broker a connect with TLS, to the SUBACK

All show the same certificate (ECDSA, P-256) and speak TLS 1.3; publisher and subscribers are by TLS. The generator
decrypts everything and checks it, in one process beside the broker: on two cores it is a part of what is measured.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from lexicast.actors.tls.development_certificates import DevelopmentAuthority

from .. import report as reports
from ..connections import own_topic, settled_kib
from ..contest import Scenario, contest
from ..fanout import WINDOW_LADDER
from ..peers.loadgen import Load, OpenLoad
from ..peers.session_opening import SessionSpec, close_all, open_sessions, raise_open_files
from ..peers.targets import TargetMissingError, start_mosquitto
from ..peers.wire import Wire, wire_of
from ..report import DriverReport
from ..stage.clusters import start_lexicast
from ..stage.ports import free_port
from ..stage.servers import Address, Target

SUBSCRIBERS: Final = (1, 10, 100)
CONNECTIONS: Final = 2_000
QUICK_CONNECTIONS: Final = 1_000
# Those that are open before: what the first ones cost beside themselves (modules, pools, buffers) is not counted.
EARLIER: Final = 200
HOST: Final = "127.0.0.1"


def measure_tls(report: DriverReport) -> None:
    """Everything of this part. Of the options it takes quick, rounds, payload, seconds, calibrate_seconds, messages and
    mqtt_version."""
    raise_open_files(4 * CONNECTIONS)
    steps = len(SUBSCRIBERS) * (1 + report.options.rounds) + 1
    with _running(report) as targets, reports.Steps(report.console, steps) as progress:
        progress.step("memory and CPU of connections")
        _connections(report, targets[1])  # first: memory that was freed would be used again and hide the cost
        for count in SUBSCRIBERS:
            ladder = WINDOW_LADDER[max(size for size in WINDOW_LADDER if size <= count)]
            opened = partial(_opened, count, report.options.payload)
            contest(report, progress, targets, Scenario(f"tls_fanout_{count}", opened, 0, count, ladder))
    _figures(report)


def _opened(count: int, payload: int, address: Address, wire: Wire) -> OpenLoad:
    """Topics and client ids of its own for each door of the cluster."""
    door = "tls" if address.cafile else "plain"
    return OpenLoad(address, wire, Load(f"fanout_{count}_{door}", count, payload))


@contextlib.contextmanager
def _running(report: DriverReport) -> Iterator[list[Target]]:
    """lexicast without TLS and with it, one cluster; Mosquitto with it, where it is installed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        folder.chmod(0o755)
        made = DevelopmentAuthority(folder / "tls").create()
        made.issue_server([HOST])
        port, cafile = free_port(), str(made.path("ca", "crt"))
        names = f'certificate = "{made.path("server", "crt")}"\nkey = "{made.path("server", "key")}"\n'
        (folder / "lexicast").mkdir()
        plain = start_lexicast(folder / "lexicast", f"[mqtt]\ntls_port = {port}\n[tls]\n{names}")
        stack.callback(plain.stop)
        targets = [plain, replace(plain, name="lexicast-tls", address=Address(HOST, port, cafile=cafile))]
        (folder / "mosquitto").mkdir()
        for kind in ("crt", "key"):
            copy = folder / "mosquitto" / f"server.{kind}"
            copy.write_bytes(made.path("server", kind).read_bytes())
            copy.chmod(0o644)  # started as root, it reads them as the user mosquitto
        listens = f"certfile {folder}/mosquitto/server.crt\nkeyfile {folder}/mosquitto/server.key\n"
        try:
            peer = start_mosquitto(folder / "mosquitto", False, listens)
            stack.callback(peer.stop)
            peer.address = replace(peer.address, cafile=cafile)
            targets.append(peer)
        except TargetMissingError as error:
            report.missing("mosquitto", str(error))
        yield targets


def _connections(report: DriverReport, target: Target) -> None:
    """Memory and CPU of many connections with TLS."""
    count = QUICK_CONNECTIONS if report.options.quick else CONNECTIONS
    wire = wire_of(target.address.protocol, report.options.mqtt_version)
    sockets = _open(target, wire, range(EARLIER))
    before_kib, before_s = settled_kib(target), target.cpu_by_role()["brokers"]
    try:
        sockets += _open(target, wire, range(EARLIER, EARLIER + count))
        spent_s = target.cpu_by_role()["brokers"] - before_s
        report.figure("tls_connection_kib", (settled_kib(target) - before_kib) / count)
        report.figure("tls_connect_us", spent_s / count * 1e6)
    finally:
        close_all(sockets, wire.goodbye())


def _open(target: Target, wire: Wire, numbers: range) -> list[socket.socket]:
    specs = [SessionSpec(f"bench-tls-{number}", own_topic(number)) for number in numbers]
    return open_sessions(target.address, wire, specs)


def _figures(report: DriverReport) -> None:
    ratios: list[float | None] = []
    rows = []
    for count in SUBSCRIBERS:
        rates = {name: told["deliveries_per_s"] for name, told in report.samples[f"tls_fanout_{count}"].items()}
        ratios.append(reports.median_ratio(rates.get("lexicast-tls"), rates.get("lexicast")))
        beside = reports.median_ratio(rates.get("lexicast-tls"), rates.get("mosquitto"))
        report.figure(f"tls_fanout_{count}_ratio", ratios[-1])
        report.figure(f"tls_fanout_{count}_vs_mosquitto", beside)
        told = [reports.format_rate(reports.median(rates.get(name, ()))) for name in _NAMES]
        rows.append([str(count), *told, reports.format_number(ratios[-1]), reports.format_number(beside, 1)])
    known = [ratio for ratio in ratios if ratio is not None]
    report.figure("tls_fanout_ratio", min(known) if len(known) == len(SUBSCRIBERS) else None)
    columns = ["subscribers", *_NAMES, "TLS / none", "vs mosquitto"]
    report.table(f"deliveries/s, {report.options.payload} B", columns, rows)


_NAMES: Final = ("lexicast", "lexicast-tls", "mosquitto")
