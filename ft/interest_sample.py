"""What a broker's subscribers want, in little: a sample of its subscriptions that all brokers draw alike. Pure.

Who has which subscriptions (REAPS' Z) is only asked for in sums over subscriptions: how many two brokers have in
common, how many one lacks. So a sample of the columns is enough, as long as everybody takes the same ones: those whose
hash is below a bound (a bottom-k sketch). Each broker tells the SAMPLE_MAX lowest of its own, the coordination server
keeps what is below the lowest of their bounds. Up to SAMPLE_MAX subscriptions a broker nothing is left out; beyond, a
part that two brokers share is off by some 1 / sqrt(SAMPLE_MAX).

Brokers load this, so it does without NumPy; what becomes of samples is in `sampled_network`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from lexicast.cluster.errors import PeerError

SAMPLE_MAX: Final = 4_096
HASH_BYTES: Final = 8
# As a bound: no hash is left out.
ALL: Final = 1 << 8 * HASH_BYTES


class InterestSample(NamedTuple):
    """One broker's.

    hashes       its lowest, ascending, little-endian, HASH_BYTES each
    below        of what is below this nothing is left out
    subscribers  that it serves now
    capacity     that it may serve
    """

    hashes: bytes
    below: int
    subscribers: int
    capacity: int


def hash_of(subscription: bytes) -> int:
    """The same wherever it is taken."""
    return int.from_bytes(blake2b(subscription, digest_size=HASH_BYTES).digest(), "little")


def sampled(hashes: Iterable[int], subscribers: int, capacity: int) -> InterestSample:
    """The sample of a broker that has subscriptions of these hashes, in any order."""
    found = sorted(set(hashes))
    below = ALL if len(found) <= SAMPLE_MAX else found[SAMPLE_MAX]
    packed = b"".join([value.to_bytes(HASH_BYTES, "little") for value in found[:SAMPLE_MAX]])
    return InterestSample(packed, below, subscribers, capacity)


def read_sample(fields: Iterable[Any]) -> InterestSample:
    """A sample as a broker sent it. Raises PeerError."""
    try:
        sample = InterestSample(*fields)
        numbers = (sample.below, sample.subscribers, sample.capacity)
        if type(sample.hashes) is not bytes or len(sample.hashes) % HASH_BYTES or {*map(type, numbers)} != {int}:
            raise ValueError("its fields are not what they are to be")
        if len(sample.hashes) > SAMPLE_MAX * HASH_BYTES or min(numbers) < 0 or sample.below > ALL:
            raise ValueError("its fields are out of range")
    except (TypeError, ValueError) as error:
        raise PeerError(f"a sample of a broker's subscriptions cannot be read: {error}") from None
    return sample
