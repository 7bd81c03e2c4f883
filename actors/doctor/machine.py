"""The machine, judged: open files, memory, shared memory, the clock. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..status.report import size
from .findings import OK, PROBLEM, WARNING, Finding

MIB: Final = 1024 * 1024
# Ray raises a process's own limit to the hard one, up to so many (`ray.init`).
RAY_FILES_MAX: Final = 65_536
# Of a broker beside its clients': links, logs, Ray's connections.
OWN_FILES: Final = 500
# What Ray's servers, and each of our actors, take when nothing has happened yet.
RAY_BYTES: Final = 500 * MIB
ACTOR_BYTES: Final = 150 * MIB
# Ray ends processes of its nodes beyond this (RAY_memory_usage_threshold).
RAY_MEMORY_USED_MAX: Final = 0.95
# Of the memory that is free Ray takes so much for its object store (RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION).
OBJECT_STORE_PART: Final = 0.3


class ClockState(NamedTuple):
    """Whether the clock is kept right, None: nobody says; `source`: who says so."""

    synchronised: bool | None
    source: str


def open_files_finding(soft: int, hard: int, connections_max: int) -> Finding:
    """`soft`, `hard`: RLIMIT_NOFILE of this process; `connections_max`: of one broker."""
    limit = max(soft, min(hard, RAY_FILES_MAX))
    wanted = connections_max + OWN_FILES
    told = f"a broker may have {limit:,} open files and takes {connections_max:,} connections (mqtt.connections_max)"
    if limit >= wanted:
        return Finding("open files", OK, told)
    to_do = f"raise the limit to {wanted:,} (`ulimit -n`, LimitNOFILE= of systemd), or lower mqtt.connections_max"
    return Finding("open files", PROBLEM if limit < OWN_FILES else WARNING, told, to_do)


class GroupMemory(NamedTuple):
    """What the files of a control group say of its memory (cgroups(7)). `limit`: "max" where there is none."""

    limit: str
    used: str
    stat: str


def grouped_memory(total_bytes: int, available_bytes: int, group: GroupMemory, idle: str) -> tuple[int, int]:
    """(in all, available) where a control group, such as a container's, may take less than the machine has. `idle`: the
    line of its `stat` with the files' pages that go as soon as others want the room."""
    limit, used, stat = group
    if not limit.strip().isdigit() or int(limit) >= total_bytes:
        return total_bytes, available_bytes
    counts = {name: int(number) for name, _, number in [line.partition(" ") for line in stat.splitlines()]}
    free_bytes = int(limit) - int(used) + counts.get(idle, 0)
    return int(limit), max(0, min(available_bytes, free_bytes))


def memory_finding(total_bytes: int, available_bytes: int, actors: int, is_running: bool) -> Finding:
    """`actors`: so many are to run here, or do where `is_running`."""
    told = f"{size(available_bytes)} of {size(total_bytes)} are available"
    if available_bytes < total_bytes * (1 - RAY_MEMORY_USED_MAX):
        so = f"{told}: with 95% in use Ray ends processes"
        return Finding("memory", PROBLEM, so, "end what takes the memory, or give the machine more")
    wanted = 0 if is_running else RAY_BYTES + actors * ACTOR_BYTES
    if available_bytes < wanted:
        so = f"{told}; Ray and {actors} actors take about {size(wanted)}"
        return Finding("memory", WARNING, so, "start fewer actors (node.brokers, node.coordinators), or free memory")
    return Finding("memory", OK, told)


def shared_memory_finding(available_bytes: int | None, memory_bytes: int) -> Finding:
    """`available_bytes`: free in /dev/shm, None where there is none; `memory_bytes`: the memory that is available."""
    to_do = "give it more (Docker: --shm-size=2g): lexicast itself needs none, Ray Data and Spark do"
    if available_bytes is None:
        return Finding("shared memory", WARNING, "there is no /dev/shm: Ray's object store goes to /tmp", to_do)
    told = f"{size(available_bytes)} are free in /dev/shm"
    if available_bytes < OBJECT_STORE_PART * memory_bytes:
        so = f"{told}, less than Ray takes for its object store: that goes to /tmp"
        return Finding("shared memory", WARNING, so, to_do)
    return Finding("shared memory", OK, told)


def clock_finding(clock: ClockState) -> Finding:
    """Positions do not depend on clocks; retention, expiry and `since` do."""
    if clock.synchronised is None:
        told = "nobody here says whether it is synchronised (adjtimex, chronyc, timedatectl)"
        return Finding("clock", WARNING, told, "see that the machine's host keeps it, or run chrony")
    if not clock.synchronised:
        told = f"it is not synchronised ({clock.source}); retention, expiry and `since` go by it"
        return Finding(
            "clock", WARNING, told, "run chrony or systemd-timesyncd, or see that the machine's host keeps it"
        )
    return Finding("clock", OK, f"synchronised ({clock.source})")
