"""Ray on this machine, judged: whether it asks for a token, what its ended sessions have left. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..status.report import size
from .findings import OK, PROBLEM, WARNING, Finding

MIB: Final = 1024 * 1024
# So much that was left, in all, is worth a word.
LEFT_BYTES_MAX: Final = 1024 * MIB
# Beyond this Ray takes a disk for full (RAY_local_fs_capacity_threshold).
DISK_USED_MAX: Final = 0.95
LEFT_SHOWN: Final = 3


class RaySession(NamedTuple):
    """A session's folder. `is_used`: a server of Ray answers at one of its sockets."""

    path: str
    used_bytes: int
    is_used: bool


class RaySessions(NamedTuple):
    """The sessions that were looked at; `is_all`: no time was lacking to look at all and everything in them."""

    found: tuple[RaySession, ...]
    is_all: bool


def token_finding(mode: str, token_mode: int | None) -> Finding:
    """`mode`: RAY_AUTH_MODE, "" where it is not set; `token_mode`: the rights of the user's token file, None: there is
    none."""
    if mode == "disabled":
        told = "RAY_AUTH_MODE=disabled: whoever reaches Ray runs code as its user"
        return Finding("ray's token", WARNING, told, "unset RAY_AUTH_MODE where others reach this machine")
    if token_mode is not None and token_mode & 0o077:
        told = "other users can read ~/.ray/auth_token, and run code as this user by it"
        return Finding("ray's token", PROBLEM, told, "chmod 600 ~/.ray/auth_token")
    if token_mode is None:
        return Finding("ray's token", OK, "there is none yet: `lexicast up` makes one")
    return Finding("ray's token", OK, "Ray asks for a token, which this user alone can read")


def sessions_finding(sessions: RaySessions) -> Finding:
    """What ended Rays have left."""
    left = sorted([each for each in sessions.found if not each.is_used], key=lambda each: -each.used_bytes)
    left_bytes, more = sum([each.used_bytes for each in left]), "" if sessions.is_all else "at least "
    told = f"{more}{len(left):,} ended sessions of Ray have left {more}{size(left_bytes)}"
    if left_bytes < LEFT_BYTES_MAX:
        used = len(sessions.found) - len(left)
        return Finding("ray's sessions", OK, f"{used} in use; {told}")
    shown = ", ".join([f"{each.path} ({size(each.used_bytes)})" for each in left[:LEFT_SHOWN]])
    so = f"{told}: {shown}{', ...' if len(left) > LEFT_SHOWN else ''}"
    return Finding("ray's sessions", WARNING, so, "remove these folders: no Ray uses them any more")


def temporary_space_finding(folder: str, free_bytes: int, total_bytes: int) -> Finding:
    """`folder`: where Ray's sessions lie."""
    told = f"{size(free_bytes)} of {size(total_bytes)} are free at {folder}, where Ray's sessions lie"
    if free_bytes < total_bytes * (1 - DISK_USED_MAX):
        to_do = "free space there, or let RAY_TMPDIR name another folder"
        return Finding("temporary files", WARNING, f"{told}: Ray takes it for full", to_do)
    return Finding("temporary files", OK, told)
