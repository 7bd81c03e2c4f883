"""What checks of this machine judge, gathered. Each function looks at one thing, and may raise whatever that raises."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Final

from lexicast.compiled import PACKAGE

from .disks import Mount, mount_of
from .machine import ClockState, GroupMemory, grouped_memory
from .software import InstalledPackage

# Packages with machine code of their own: that they are listed does not say that they fit this machine.
NATIVE: Final = ("uvloop", "msgpack", "msgspec", "zstandard", "lmdb", "cryptography", "numpy", "psutil")
SHARED_MEMORY: Final = Path("/dev/shm")
# (folder, limit, what is used, in memory.stat: files' pages that go when others want the room) of the control group
# that a container is; version 2, version 1.
MEMORY_GROUPS: Final = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
MOUNTS: Final = Path("/proc/self/mountinfo")
COMMAND_TIMEOUT_S: Final = 2.0
# struct timex (adjtimex(2)): modes, then longs; status is the sixth word. 208 bytes on 64-bit Linux.
TIMEX_BYTES: Final = 208
STATUS_AT: Final = 40
UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC


def required_packages() -> list[str]:
    """The package's own requirements, as its metadata has them; empty where it is not installed.

    Of a working copy those of its pyproject.toml: what was once installed from there has those of that day.
    """
    project = PACKAGE.parents[1] / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extras = table["optional-dependencies"].items()
        return [*table["dependencies"], *[f"{each}; extra == '{extra}'" for extra, listed in extras for each in listed]]
    try:
        return metadata.requires("lexicast") or []
    except metadata.PackageNotFoundError:
        return []


def installed_package(name: str) -> InstalledPackage:
    """The package as it is here; one with machine code is loaded."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return InstalledPackage("")
    try:
        if name in NATIVE:
            import_module(name)
    except Exception as error:  # whatever a broken package raises
        return InstalledPackage(version, " ".join(str(error).split()) or type(error).__name__)
    return InstalledPackage(version)


def python_here() -> tuple[Sequence[int], str]:
    """(version, implementation)."""
    return sys.version_info[:3], platform.python_implementation()


def machine_here() -> tuple[str, str, int]:
    """(system, machine, bits of a pointer)."""
    return platform.system(), platform.machine(), 8 * struct.calcsize("P")


def open_files_here() -> tuple[int, int]:
    """(soft, hard)."""
    unlimited, limits = 1 << 30, resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (unlimited if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def memory_here() -> tuple[int, int]:
    """(in all, available) for this process, in bytes."""
    import psutil

    memory = psutil.virtual_memory()
    for folder, limit, used, idle in MEMORY_GROUPS:
        with suppress(OSError):
            group = GroupMemory(*[(folder / name).read_text() for name in (limit, used, "memory.stat")])
            return grouped_memory(memory.total, memory.available, group, idle)
    return memory.total, memory.available


def shared_memory_here() -> int | None:
    """Bytes that are free in /dev/shm; None where there is none."""
    return free_bytes(SHARED_MEMORY)[0] if SHARED_MEMORY.is_dir() else None


def free_bytes(folder: Path) -> tuple[int, int]:
    """(free for this user, in all)."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def there_or_above(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))


def mount_here(folder: Path) -> Mount | None:
    """The mount of a folder that need not be there yet."""
    return mount_of(str(there_or_above(folder).resolve()), MOUNTS.read_text(errors="replace"))


def clock_here() -> ClockState:
    """Whether the kernel, chrony or systemd say that the clock is synchronised; one that does is enough."""
    kernel = _kernel_clock()
    if kernel:
        return ClockState(True, "adjtimex")
    if _output_of("chronyc", "-n", "tracking").find("Leap status     : Normal") >= 0:
        return ClockState(True, "chrony")
    said = _output_of("timedatectl", "show", "--property=NTPSynchronized", "--value").strip()
    if said in ("yes", "no"):
        return ClockState(said == "yes", "timedatectl")
    return ClockState(kernel, "adjtimex")


def _kernel_clock() -> bool | None:
    """None where it may not be asked."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        answered = ctypes.CDLL(None).adjtimex(buffer) >= 0
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(buffer.raw[STATUS_AT : STATUS_AT + 4], sys.byteorder)
    return not status & UNSYNCHRONISED if answered else None


def _output_of(*command: str) -> str:
    """What a program says; "" where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""
