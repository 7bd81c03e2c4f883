"""The disk of a data folder, judged: what kind of file system it is, its room, who may write there. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from ..status.report import size
from .findings import OK, PROBLEM, WARNING, Finding

NETWORK: Final = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "virtiofs",
    "vboxsf",
)
# Those of user space may be anything, mostly something remote.
USER_SPACE: Final = "fuse"
IN_MEMORY: Final = ("tmpfs", "ramfs")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a file system is mounted, its kind, whether it can be written to."""

    point: str
    kind: str
    read_only: bool


class FolderRoom(NamedTuple):
    """The room of a data folder. `stores_bytes`: what the stores there take now; the others of each store:
    storage.quota_bytes and reserve_bytes."""

    free_bytes: int
    stores_bytes: int
    stores: int
    quota_bytes: int
    reserve_bytes: int


def mount_of(path: str, mounts: str) -> Mount | None:
    """The mount that a path is below; `mounts`: /proc/self/mountinfo (proc(5)). The last one hides those before it.

    A file system whose disk has failed is read-only by its own options, the last ones, and not by the mount's.
    """
    found: Mount | None = None
    for line in mounts.split("\n"):
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split()
        if not separator or len(fields) < 6 or not kinds:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if PurePosixPath(path).is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            options = [*fields[5].split(","), *kinds[-1].split(",")]
            found = Mount(point, kinds[0], "ro" in options)
    return found


def file_system_finding(folder: str, mount: Mount | None) -> Finding:
    """`folder`: the data folder."""
    check, move = "file system", "choose a --data-dir on a local disk (ext4, xfs)"
    if mount is None:
        return Finding(check, WARNING, f"what {folder} lies on is not known", "see that it is a local disk")
    told = f"{folder} lies on {mount.kind}, mounted at {mount.point}"
    if mount.read_only:
        to_do = "see in `dmesg` whether its disk has failed, mount it for writing, or " + move
        return Finding(check, PROBLEM, f"{told}, which cannot be written to", to_do)
    if mount.kind in NETWORK or mount.kind.split(".")[0] == USER_SPACE:
        return Finding(check, PROBLEM, f"{told}: LMDB's locks and its memory map need a disk of this machine", move)
    if mount.kind in IN_MEMORY:
        return Finding(check, WARNING, f"{told}: what is stored is lost with the machine's power", move)
    if mount.kind == "overlay":
        return Finding(check, WARNING, f"{told}: what is stored goes with the container", "mount a volume there")
    return Finding(check, OK, told)


def room_finding(room: FolderRoom) -> Finding:
    """Whether stores are stopped by their quota, as they are to be, or by the disk."""
    free, growth = room.free_bytes, max(0, room.stores * room.quota_bytes - room.stores_bytes)
    stores = "1 store" if room.stores == 1 else f"{room.stores} stores"
    told = f"{size(free)} are free, and {stores} may still grow by {size(growth)} (storage.quota_bytes)"
    less = "free disk space, or lower storage.retention_s, retention_bytes or quota_bytes"
    if free <= room.reserve_bytes:
        so = f"{told}: with {size(room.reserve_bytes)} left publishing is refused"
        return Finding("disk space", PROBLEM, so, less)
    if free < growth:
        return Finding("disk space", WARNING, f"{told}: the disk is full before the quota is", less)
    return Finding("disk space", OK, told)


def folder_finding(folder: str, may_write: bool, mode: int | None, is_own: bool) -> Finding:
    """`may_write`: there, or where it is to be made; `mode`: None: it is not there yet; `is_own`: this user owns it."""
    if not may_write:
        to_do = "run as the user who owns it, or choose another --data-dir"
        return Finding("data folder", PROBLEM, f"{folder} cannot be written to by this user", to_do)
    if mode is None:
        return Finding("data folder", OK, f"{folder} will be made")
    if mode & 0o002:
        to_do = f"`chmod o-w {folder}`, and see that everything in it is yours"
        return Finding("data folder", PROBLEM, f"every user of this machine may write into {folder}", to_do)
    if not is_own:
        to_do = "run everything of a cluster as one user"
        return Finding("data folder", WARNING, f"{folder} belongs to another user", to_do)
    return Finding("data folder", OK, f"{folder} is this user's")
