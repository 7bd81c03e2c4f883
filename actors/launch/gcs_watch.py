"""The watch over the control process (the GCS) of an embedded Ray, which is started again when it dies.

It keeps names, actors and its key-value store in the data folder (RocksDB), so a new process on the same port goes on
where the old one stood: calls between actors are not even interrupted (FACTS.md), killed actors are restarted as soon
as it answers, and new drivers find it. Nobody else would start it: in a Ray of its own `up` is its parent. Ray's other
processes end themselves when it stays away for a minute.

The new process gets the old one's command line and environment as the system shows them, so that nothing here has to
know what Ray passes to it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

import psutil

from lexicast.cluster.errors import UnavailableError

from .processes import children

GCS: Final = "gcs_server"
RAYLET: Final = "raylet"
PORT_OPTION: Final = "--gcs_server_port="
PAUSE_FIRST_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
# One that ran this long counts as well again: the next restart is at once.
WELL_S: Final = 30.0

_PR_SET_PDEATHSIG: Final = 1


class GcsWatch:
    """The GCS and the raylet below this process."""

    def __init__(self, address: str, say: Callable[[str], None], changed: Callable[[], None]) -> None:
        """`address`: the GCS's. `changed` is called when a process was started. Raises UnavailableError."""
        self._say = say
        self._changed = changed
        gcs, self._raylet = _child(GCS), _child(RAYLET)
        port = address.rpartition(":")[2]
        self._gcs_pid = gcs.pid
        self._command = [f"{PORT_OPTION}{port}" if a.startswith(PORT_OPTION) else a for a in gcs.cmdline()]
        self._environment = gcs.environ()
        self._restarted: subprocess.Popen[bytes] | None = None

    async def watch(self) -> None:
        """Restart the GCS whenever it ends; main thread. Raises UnavailableError when the raylet has ended."""
        tasks = [asyncio.create_task(work) for work in (self._keep_gcs(), self._wait_raylet())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_raylet(self) -> None:
        await ended(self._raylet.pid)
        raise UnavailableError(
            f"Ray's raylet (process {self._raylet.pid}) has ended, and all actors with it: start the cluster again "
            "with `lexicast up`; what was acknowledged is stored"
        )

    async def _keep_gcs(self) -> None:
        pause = PAUSE_FIRST_S
        while True:
            started = time.monotonic()
            await ended(self._gcs_pid)
            if time.monotonic() - started > WELL_S:
                pause = PAUSE_FIRST_S
            self._say(f"Ray's GCS (process {self._gcs_pid}) has ended: starting it again; messages flow on meanwhile")
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_S)
            self._start()

    def _start(self) -> None:
        if self._restarted is not None:
            self._restarted.wait()  # it has ended: this only reads its code
        self._restarted = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for `up` alone
            preexec_fn=_die_with_parent,
        )
        self._gcs_pid = self._restarted.pid
        self._changed()

    def end(self) -> None:
        """End the GCS that this started: Ray does not know it. Nothing when there is none."""
        if self._restarted is not None:
            self._restarted.kill()
            self._restarted.wait()
            self._restarted = None


async def ended(pid: int) -> None:
    """Return when the process has ended; at once when there is none."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        loop.add_reader(descriptor, done.set)
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _child(name: str) -> psutil.Process:
    for process in children():
        if process.name().startswith(name):
            return process
    raise UnavailableError(f"Ray has started without its {name}: see the logs below /tmp/lexicast-*/ray")


_libc: Final = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """Between fork and exec: the kernel ends this process with its parent, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
