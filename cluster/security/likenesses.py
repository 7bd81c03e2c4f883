"""What the hashes of users who do not exist are like, so that the time of a refusal tells nothing of who does. Pure.

Where a file has hashes of several kinds and costs, made up ones are of each as often as in the file: else whoever
measures would know that a name which costs another time than most that do not exist is somebody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import Final, NamedTuple

from .passwords import SALT_BYTES_MAX, SHA512, PasswordHash, Passwords, parse_hash

LIKENESSES_MAX: Final = 64


class Likenesses(NamedTuple):
    """The kinds of hashes in a password file, and up to which number each goes when rows are counted by kind."""

    kinds: tuple[PasswordHash, ...]
    upto: tuple[int, ...]

    def made_up(self, digest: bytes) -> PasswordHash:
        """The hash of somebody whose name has this digest (SALT_BYTES_MAX secret bytes): the same each time. There is
        no password to it."""
        assert len(digest) == SALT_BYTES_MAX
        kind = self.kinds[bisect_right(self.upto, int.from_bytes(digest[:8], "big") % self.upto[-1])]
        return kind._replace(salt=digest[: len(kind.salt)])


NO_LIKENESS: Final = Likenesses((PasswordHash(SHA512, bytes(12), bytes(64)),), (1,))


def likenesses(passwords: Passwords) -> Likenesses:
    """Of what kinds the hashes of a file are."""
    counts: Counter[PasswordHash] = Counter()
    for written in passwords.values():
        parsed = parse_hash(written)
        kind = parsed._replace(salt=bytes(len(parsed.salt)), digest=bytes(len(parsed.digest)))
        if kind in counts or len(counts) < LIKENESSES_MAX:
            counts[kind] += 1
    return Likenesses(tuple(counts), tuple(accumulate(counts.values()))) if counts else NO_LIKENESS
