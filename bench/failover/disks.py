"""A machine's disk of its own: a file system in a file, small enough to be filled, and slow on demand.

It is mounted in the driver's mount namespace, so the kernel takes mount and loop device away with the driver. Slow is
what the kernel makes of it: at most so many writes a second of the processes of one machine (cgroup v1, blkio), which
is what an fsync then waits for; the file system has no journal, whose thread would not be slowed down.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from .machines import Machine, shell

DISK_BYTES: Final = 400 << 20
FILL: Final = "fill"
PIECE: Final = b"\0" * (1 << 20)
CGROUPS: Final = Path("/sys/fs/cgroup/blkio")
PREFIX: Final = "lexicast-drills-"
THROTTLE: Final = "blkio.throttle.write_iops_device"


class OwnDisk:
    """The disk of one machine that has no power yet."""

    def __init__(self, machine: Machine) -> None:
        """Make and mount it. Raises UnavailableError."""
        self._machine = machine
        self._group = CGROUPS / f"{PREFIX}{os.getpid()}-{machine.number}"
        image = machine.folder / "disk.img"
        machine.disk.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        shell("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image))
        shell("mount", "-o", "loop", str(image), str(machine.disk))
        device = shell("findmnt", "-n", "-o", "SOURCE", str(machine.disk)).strip()
        self._device = Path(f"/sys/block/{Path(device).name}/dev").read_text().strip()

    # -- full

    def fill(self) -> None:
        """Not a byte is left."""
        with suppress(OSError), (self._machine.disk / FILL).open("wb", buffering=0) as file:
            while True:
                file.write(PIECE)

    def empty(self) -> None:
        """There is room again."""
        (self._machine.disk / FILL).unlink(missing_ok=True)

    # -- slow

    @staticmethod
    def can_be_slow() -> bool:
        """Whether this kernel can slow down a group of processes."""
        return (CGROUPS / THROTTLE).exists()

    def slow(self, writes_per_s: int) -> None:
        """At most so many writes a second; 0: as fast as it is."""
        self._group.mkdir(exist_ok=True)
        for pid in self._machine.processes().values():
            with suppress(OSError):
                (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / THROTTLE).write_text(f"{self._device} {writes_per_s}")

    def fast(self) -> None:
        """As fast as it is."""
        if self._group.exists():
            self.slow(0)

    def close(self) -> None:
        """Give back what is not the driver's own; its machine has ended."""
        with suppress(OSError):
            self._group.rmdir()
        shell("umount", str(self._machine.disk), check=False)
