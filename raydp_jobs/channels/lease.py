"""Who answers the channels: of all runners one at a time, the others stand by. Pure.

Theory of operation. The runner that answers says so every BEAT_S, retained, on LEASE_TOPIC: its name and its *term*.
The others listen. Rules:

1. Who has heard nothing of the highest term for TAKE_OVER_S takes over, with a higher term. One that ends by itself
   says so (no name), and is followed at once.
2. A term is the incarnation of one producer, under which everything is published that a runner publishes. Its first
   publication goes to each topic group (`fence_topics`): from then on no group takes anything of a lower term.
3. So a suspicion that proves wrong costs a change of the runner and nothing else: who was deposed is refused, hears the
   higher term, and stands by.
4. What lower terms have published is all there, and all of it can be read, once the fence is acknowledged.

A term begins with the clock's seconds and ends with random bits, so that two that take over at once have two terms, of
which the higher stays; it is higher than all that were heard of, whatever the clock says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Final

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.positions import topic_group

LEASE_TOPIC: Final = "$channel-runner/lease"
FENCE_PREFIX: Final = "$channel-runner/fence/"
PRODUCER: Final = b"lexicast-channel"
BEAT_S: Final = 2.0
# Two beats may be lost on the way, and a third be late.
TAKE_OVER_S: Final = 7.0
SALT_BITS: Final = 20


class LeaseLostError(UnavailableError):
    """This runner answers no more: another one does, or nothing of what it says is stored."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What is said on LEASE_TOPIC; without a `runner` nobody answers."""

    runner: str
    term: int

    def pack(self) -> bytes:
        """As it is published."""
        return json.dumps({"runner": self.runner, "term": self.term}).encode()


NOBODY: Final = Lease("", 0)


def unpack_lease(payload: bytes) -> Lease | None:
    """The inverse of `Lease.pack`; None for anything else."""
    try:
        fields = json.loads(payload)
        lease = Lease(fields["runner"], fields["term"])
    except (ValueError, KeyError, TypeError):
        return None
    return lease if type(lease.runner) is str and type(lease.term) is int and lease.term >= 0 else None


class LeaseWatch:
    """What is heard of leases; times are monotonic seconds."""

    def __init__(self) -> None:
        self.highest = NOBODY
        self._heard_s = 0.0

    def heard(self, lease: Lease, now_s: float) -> None:
        """A runner has said that it answers, or that it ends. What a lower term still says counts for nothing."""
        if lease.term >= self.highest.term:
            self.highest, self._heard_s = lease, now_s

    def open_in_s(self, now_s: float) -> float:
        """After how many seconds of silence the lease may be taken; 0: now (rule 1)."""
        if not self.highest.runner:
            return 0.0
        return max(0.0, self._heard_s + TAKE_OVER_S - now_s)

    def next_term(self, clock_s: float, salt: int) -> int:
        """The term to take over with; `salt`: SALT_BITS random bits."""
        return max(self.highest.term + 1, int(clock_s) << SALT_BITS | salt)


def fence_topics(groups: int) -> list[str]:
    """A topic in each topic group (rule 2)."""
    found: dict[int, str] = {}
    for number in count():
        topic = f"{FENCE_PREFIX}{number}"
        found.setdefault(topic_group(topic.encode(), groups), topic)
        if len(found) == groups:
            break
    return list(found.values())
