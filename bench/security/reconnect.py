"""Devices with passwords that all lose their connections and come back at once, and how others fare meanwhile.

    reconnect_5000_s            from the first connect() to the last CONNACK that lets in, the median of the rounds
    reconnect_others_p99_ms     another client's QoS 1 publication to itself meanwhile, the worst of the rounds
    reconnect_before_p99_ms     the same before, while all are connected and silent

Each has a generated secret (`lexicast user add --generate`: one fast hash) and a session that stays, with a
subscription of its own. All sockets are opened without waiting for one another, and each CONNECT is sent as soon as its
connection is there; nothing paces them but the broker. The other client has not logged in.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.security.passwords import SALT_BYTES, SHA512, hash_password

from .. import report as reports
from ..peers.session_opening import close_all, raise_open_files
from ..peers.wire import RefusedError, mqtt_frame
from ..report import DriverReport
from ..resume.clients import Probe, mqtt_string, subscribe_packet
from ..stage.clusters import start_lexicast
from ..stage.servers import Address

DEVICES: Final = 5_000
QUICK_DEVICES: Final = 1_000
SECRET_BYTES: Final = 16
LIMIT_S: Final = 120.0
# How long others are watched while nobody comes, and how long the broker has to see that all are gone.
BEFORE_S: Final = 5.0
QUICK_BEFORE_S: Final = 1.0
GONE_S: Final = 2.0
CONNACK_BYTES: Final = 4
SUBACK_BYTES: Final = 5


class LoggedInDevices:
    """Some devices with a name and a secret each."""

    def __init__(self, count: int) -> None:
        self._words = {f"device-{number}": secrets.token_urlsafe(SECRET_BYTES) for number in range(count)}
        self._sockets: list[socket.socket] = []

    def password_file(self) -> str:
        """Of all of them, as `lexicast user add --generate` writes it."""
        rows = [
            f"{name}:{hash_password(word.encode(), secrets.token_bytes(SALT_BYTES[SHA512]), SHA512).text()}\n"
            for name, word in self._words.items()
        ]
        return "".join(rows)

    def come(self, address: Address, subscribe: bool = False) -> float:
        """All connect at once; seconds until all are let in. `subscribe`: each to a topic of its own then.

        Raises RefusedError, UnavailableError.
        """
        began_s = time.perf_counter()
        self._sockets = [_begun(address) for _ in self._words]
        connects = [_connect(name, word) for name, word in self._words.items()]
        _answered(self._sockets, connects, CONNACK_BYTES)
        took_s = time.perf_counter() - began_s
        if subscribe:
            filters = [subscribe_packet([f"devices/{name}/#"]) for name in self._words]
            _answered(self._sockets, filters, SUBACK_BYTES)
        return took_s

    def vanish(self) -> None:
        """All lose their connections, without a word."""
        close_all(self._sockets)
        self._sockets = []


def _begun(address: Address) -> socket.socket:
    """A socket whose connection is on its way."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    error = sock.connect_ex((address.host, address.port))
    if error not in (0, errno.EINPROGRESS):
        sock.close()
        raise UnavailableError(f"cannot connect to {address.host}:{address.port}: {errno.errorcode.get(error, error)}")
    return sock


def _connect(name: str, word: str) -> bytes:
    """CONNECT of 3.1.1 with user name and password, a session that stays, and no keep-alive."""
    head = b"\0\4MQTT\4\xc0\0\0"
    return mqtt_frame(0x10, head + mqtt_string(name) + mqtt_string(name) + mqtt_string(word))


def _answered(sockets: Sequence[socket.socket], packets: Sequence[bytes], answer_bytes: int) -> None:
    """Send each its packet as soon as it takes it; returns when each has its answer, whose last byte is 0 or a granted
    QoS. Raises RefusedError, UnavailableError."""
    until_s = time.monotonic() + LIMIT_S
    with contextlib.closing(select.epoll()) as epoll:
        waiting = {sock.fileno(): (sock, packet) for sock, packet in zip(sockets, packets, strict=True)}
        for descriptor in waiting:
            epoll.register(descriptor, select.EPOLLOUT)
        came = dict.fromkeys(waiting, b"")
        while waiting:
            if time.monotonic() > until_s:
                raise UnavailableError(f"{len(waiting)} of {len(sockets)} had no answer after {LIMIT_S:.0f} s")
            for descriptor, events in epoll.poll(0.1):
                sock, packet = waiting[descriptor]
                if events & select.EPOLLOUT:
                    sock.send(packet)
                    epoll.modify(descriptor, select.EPOLLIN)
                    continue
                came[descriptor] += sock.recv(64)
                if len(came[descriptor]) < answer_bytes:
                    if not came[descriptor]:
                        raise RefusedError("the broker closed a connection")
                    continue
                if came[descriptor][-1] > 2 or (answer_bytes == CONNACK_BYTES and came[descriptor][-1]):
                    raise RefusedError(f"the broker refused a device: {came[descriptor].hex()}")
                epoll.unregister(descriptor)
                del waiting[descriptor]


def measure_reconnect(report: DriverReport) -> None:
    """Everything of this part. Of the options it takes quick and rounds."""
    quick = report.options.quick
    count, before_s = (QUICK_DEVICES, QUICK_BEFORE_S) if quick else (DEVICES, BEFORE_S)
    raise_open_files(count + 200)
    devices = LoggedInDevices(count)
    took, others = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory(prefix="lexicast-bench-") as folder,
        reports.Steps(report.console, 1 + report.options.rounds) as progress,
    ):
        file = Path(folder) / "passwords"
        file.write_text(devices.password_file())
        file.chmod(0o600)
        config = f'[mqtt]\nallow_anonymous = "loopback"\n[security]\npassword_file = "{file}"\n'
        target = start_lexicast(Path(folder), config)
        try:
            progress.step(f"{count:,} devices come")
            devices.come(target.address, subscribe=True)
            probe = Probe(target.address)
            time.sleep(before_s)
            report.figure("reconnect_before_p99_ms", probe.stop())
            for number in range(report.options.rounds):
                progress.step(f"all come back, {number + 1} of {report.options.rounds}")
                devices.vanish()
                time.sleep(GONE_S)
                probe = Probe(target.address)
                took.append(devices.come(target.address))
                others.append(probe.stop())
                target.require_alive()
        finally:
            devices.vanish()
            target.stop()
    report.figure(f"reconnect_{count}_s", reports.median(took))
    report.figure("reconnect_others_p99_ms", max(others))
    rows = [
        [str(number), f"{s:.2f}", f"{p99:.1f}"] for number, (s, p99) in enumerate(zip(took, others, strict=True), 1)
    ]
    report.table(f"{count:,} devices with passwords reconnect at once", ["round", "all in s", "others' p99 ms"], rows)
