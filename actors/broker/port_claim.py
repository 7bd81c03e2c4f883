"""The guard of the MQTT port: brokers of one cluster share it by SO_REUSEPORT, two clusters never do.

SO_REUSEPORT alone would let a second cluster bind the same port without an error and take every other connection
(FACTS.md). So whoever listens first holds a lock file named after the port, in the temporary folder:

    nobody holds it     lock it exclusively, see that no stranger listens (a bind without SO_REUSEPORT), write the
                        cluster's id into it, go on with a shared lock
    somebody holds it   take a shared lock and compare the id: ours, or the port is in use

Turning an exclusive lock into a shared one is not atomic (flock(2)): the id is read again under the shared lock. The
lock goes with the process, so a crash leaves nothing to clean up; the file itself stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.files import open_lock

PORT_OPTION: Final = "--mqtt-port"
TLS_PORT_KNOB: Final = "mqtt.tls_port"
# How long another one's check of the same port may take.
LOCK_WAIT_S: Final = 5.0
LOCK_PAUSE_S: Final = 0.01
ID_BYTES_MAX: Final = 200
BACKLOG: Final = 4096
# Where port 0 is looked for: above Ray's own (10002 to 19999), below what the system gives to outgoing connections.
CHOSEN_FROM: Final = 20_000
CHOSEN_BELOW: Final = 65_536
CHOICES: Final = 20
EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(slots=True)
class PortClaim:
    """A claimed port: keep it as long as the port is served."""

    port: int
    lock: int
    _reserved: socket.socket

    def close(self) -> None:
        """Give the port back; closing twice does nothing."""
        self._reserved.close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def claim_port(host: str, port: int, cluster_id: str, knob: str = PORT_OPTION) -> PortClaim:
    """Claim `port` for the cluster; port 0 takes a free one. Blocking, a moment. `knob` says where another is chosen.

    The claim also keeps the port bound (not listening), so that the system gives it to nobody while a broker
    restarts. Raises UnavailableError: in use by another program or cluster, or not allowed.
    """
    try:
        return _claim_this(host, port, cluster_id) if port else _claim_any(host, cluster_id)
    except UnavailableError as error:
        raise UnavailableError(str(error).replace(PORT_OPTION, knob)) from None


def _claim_this(host: str, port: int, cluster_id: str, alone: bool = False) -> PortClaim:
    """`alone`: nobody may have it yet, this cluster neither."""
    with _lock_file(port) as lock:
        if alone and not _try(lock, fcntl.LOCK_EX):
            raise UnavailableError(busy(port, "a lexicast cluster"))
        holder = _lock_for(lock, host, port, cluster_id)
        if holder != cluster_id:
            raise UnavailableError(busy(port, f"another lexicast cluster ({holder or 'unknown'})"))
        return PortClaim(port, lock, reuse_port_socket(host, port))


def _claim_any(host: str, cluster_id: str) -> PortClaim:
    """Somebody else may choose the same at the same time: one gets it, the other tries another."""
    for port in _choices():
        with suppress(UnavailableError):
            return _claim_this(host, port, cluster_id, alone=True)
    return _claim_this(host, _systems_choice(host), cluster_id, alone=True)


def reuse_port_socket(host: str, port: int) -> socket.socket:
    """A bound, non-blocking TCP socket with SO_REUSEPORT, for a listener. Raises UnavailableError."""
    family, address = _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _bind_error(host, port, error) from None
    return sock


def busy(port: int, holder: str) -> str:
    """The one line for a port that cannot be had."""
    return f"port {port} is in use by {holder}: choose another with {PORT_OPTION} or stop it"


def _lock_for(lock: int, host: str, port: int, cluster_id: str) -> str:
    """Lock the file; the id of the cluster that holds the port is returned, under a shared lock."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        if _try(lock, fcntl.LOCK_EX):
            check_free(host, port)
            _write_id(lock, cluster_id)
        if _try(lock, fcntl.LOCK_SH):
            holder = _read_id(lock)
            # An id that is not ours counts only while somebody else holds the lock: a crash leaves old ones.
            if holder == cluster_id or not _try(lock, fcntl.LOCK_EX):
                return holder
            continue
        if time.monotonic() > until:
            raise UnavailableError(busy(port, "a cluster that is starting"))
        time.sleep(LOCK_PAUSE_S)


def _try(lock: int, operation: int) -> bool:
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_free(host: str, port: int) -> None:
    """Raises UnavailableError when somebody listens there who knows nothing of the lock."""
    family, address = _resolve(host, port)
    with closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            sock.bind(address)
        except OSError as error:
            raise _bind_error(host, port, error) from None


def _choices() -> list[int]:
    """Those that the system gives to nobody by itself: a claimed one is bound seconds later, by another process. Drawn
    by the system too: a program may have seeded `random`, and all of its processes would draw alike."""
    below = min(_first_ephemeral(), CHOSEN_BELOW)
    if below - CHOSEN_FROM < CHOICES:
        return []
    return random.SystemRandom().sample(range(CHOSEN_FROM, below), k=CHOICES)


def _systems_choice(host: str) -> int:
    family, address = _resolve(host, 0)
    with closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        try:
            sock.bind(address)
        except OSError as error:
            raise _bind_error(host, 0, error) from None
        return int(sock.getsockname()[1])


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UnavailableError(f"{host} is no address to listen on ({error.strerror}): change mqtt.host") from None
    return family, (str(address[0]), int(address[1]))


def _bind_error(host: str, port: int, error: OSError) -> UnavailableError:
    if error.errno == errno.EADDRINUSE:
        return UnavailableError(busy(port, "another program"))
    if error.errno == errno.EACCES:
        return UnavailableError(f"port {port} needs more rights: choose one from 1024 on with {PORT_OPTION}")
    if error.errno == errno.EADDRNOTAVAIL:
        return UnavailableError(f"{host} is not an address of this machine: change mqtt.host")
    return UnavailableError(f"cannot listen on {host} port {port}: {error.strerror}")


@contextmanager
def _lock_file(port: int) -> Iterator[int]:
    """The port's lock file, open; it stays open unless an error ends the block."""
    path = Path(tempfile.gettempdir()) / f"lexicast-mqtt-{port}.lock"
    try:
        lock = open_lock(path, os.O_NOFOLLOW)
    except PermissionError:
        raise UnavailableError(busy(port, f"another user (who owns {path})")) from None
    except OSError as error:
        raise UnavailableError(f"cannot open {path}: {error.strerror}") from None
    try:
        yield lock
    except BaseException:
        os.close(lock)
        raise


def _write_id(lock: int, cluster_id: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, cluster_id.encode()[:ID_BYTES_MAX], 0)


def _read_id(lock: int) -> str:
    return os.pread(lock, ID_BYTES_MAX, 0).decode(errors="replace")
