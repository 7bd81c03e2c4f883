"""Identifiers of SkipCloud: digits in base b, what two have in common, and which one is nearest to a target. Pure.

A member's identifier is that of its top cluster, m digits (SREM, section 3.1). The paper appends more digits to tell
the members of one cluster apart; here their names do.

    level i     members that have the first i digits in common are one cluster: b^i clusters, 0 is everybody
    children    of a cluster at level i are the clusters at level i + 1 with one digit more (the paper prints i - 1)

Nearest, where the target's cluster is empty, is what everybody must agree on: the longest common prefix first, then
the fewest steps up from the target's digit, around at b, and so on digit by digit (as Tapestry's surrogates). That
orders all clusters, so there is one nearest, and whoever is not there knows of somebody nearer (`node`).
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from ..errors import UsageError

BASE_MAX: Final = 256  # a digit is a byte
# Hashing 128 bits to fewer clusters than this favours none by more than one in 2^64.
CLUSTERS_MAX: Final = 2**64
_HASH_BYTES: Final = 16


class CloudMember(NamedTuple):
    """A member: its name, and the identifier of its top cluster, a byte a digit."""

    name: str
    digits: bytes


class CloudShape(NamedTuple):
    """How a SkipCloud is built; the same at all members.

    base, levels          b and m: b^m top clusters
    contacts_a_child      of each child cluster so many are in a view: b times that is the paper's degree D_c
    shuffle_contacts      how many a shuffle carries at most, below the top
    cluster_members_max   of a top cluster, which is a complete graph
    """

    base: int
    levels: int
    contacts_a_child: int = 3
    shuffle_contacts: int = 8
    cluster_members_max: int = 64

    @property
    def clusters(self) -> int:
        """How many top clusters there can be: b^m."""
        return int(self.base**self.levels)

    @property
    def view_contacts_max(self) -> int:
        """How many contacts a view below the top has room for."""
        return self.base * self.contacts_a_child

    def valid(self) -> CloudShape:
        """Itself. Raises UsageError where no SkipCloud can be built so."""
        if not 2 <= self.base <= BASE_MAX or self.levels < 1 or self.clusters > CLUSTERS_MAX:
            raise UsageError(f"SkipCloud needs base 2 to {BASE_MAX}, a level or more and at most 2^64 clusters: {self}")
        if min(self.contacts_a_child, self.shuffle_contacts, self.cluster_members_max) < 1:
            raise UsageError(f"SkipCloud needs room for one contact or more everywhere: {self}")
        return self

    def digits(self, cluster: int) -> bytes:
        """The identifier of the top cluster with this number, below `clusters`."""
        found = bytearray(self.levels)
        for at in reversed(range(self.levels)):
            cluster, found[at] = divmod(cluster, self.base)
        return bytes(found)

    def hashed(self, key: bytes) -> bytes:
        """The identifier that `key` hashes to. The paper takes MD5; BLAKE2b is faster, and nobody finds collisions."""
        digest = hashlib.blake2b(key, digest_size=_HASH_BYTES).digest()
        return self.digits(int.from_bytes(digest, "big") % self.clusters)


def levels_for(members: int, base: int, cluster_members: int = 1) -> int:
    """The most levels, at least one, at which `members` can fill all top clusters with `cluster_members` or more each:
    then m <= ceil(log_b members), and so are the hops."""
    levels = 1
    while base ** (levels + 1) * cluster_members <= members:
        levels += 1
    return levels


def common_prefix(one: bytes, other: bytes) -> int:
    """How many digits two identifiers have in common from the first one on."""
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))


def remoteness(digits: bytes, target: bytes, base: int) -> bytes:
    """How far `digits` are from `target`: the less, byte by byte, the nearer; all zeros for the target itself."""
    return bytes([(own - wanted) % base for own, wanted in zip(digits, target, strict=True)])
