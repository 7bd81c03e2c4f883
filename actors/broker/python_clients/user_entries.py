"""The entries of a user's Python client: they may name nobody else, and what may not be published is cut out of them.

A client is its own producer and makes its entries itself; who has no key is not believed. An entry says one publisher,
the client; one producer, a random number that is the link's from its first entry on; no packet ids. What is retained
says whose it is (`security.authors`), which the client does not know how to say.

An entry of which some topics may not be written is cut: the rest goes on under the same sequence numbers, for the
sequencer takes gaps (a refused entry leaves one too). What was refused is told with the result, record by record.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from lexicast.cluster.blocks import PUBLICATIONS, RETAIN, Block, Meta, pack_meta
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import WireEntry
from lexicast.cluster.selection import select

from ..security.rights import ClientRights

PRODUCER_BYTES: Final = 16


class UserEntries:
    """See the module's docstring."""

    def __init__(self, rights: ClientRights) -> None:
        self._rights = rights
        self._producer: tuple[bytes, int] | None = None

    def check(self, meta: Meta, count: int) -> None:
        """Raises PeerError for an entry that names somebody else."""
        if meta.marks or len(meta.producers) != 1 or any([run.skip for run in meta.runs]):
            raise PeerError("an entry of a user's has one producer, no packet ids and no gaps")
        if any([origin != self._rights.client_id for origin in meta.origins]):
            raise PeerError("an entry names another publisher than its client")
        producer, incarnation, _, named = meta.producers[0]
        if len(producer) != PRODUCER_BYTES or named != count:
            raise PeerError("an entry's producer is none, or has another number of records")
        if self._producer is None:
            self._producer = producer, incarnation
        elif self._producer != (producer, incarnation):
            raise PeerError("an entry is another producer's than those before it")

    def refused(self, meta: Meta) -> dict[int, str]:
        """Why topics of an entry, by index, may not be published to."""
        found: dict[int, str] = {}
        for index, topic in enumerate(meta.topics):
            name, user = topic.decode(errors="backslashreplace"), self._rights.user
            if topic.startswith(b"$"):
                found[index] = f"NotAuthorizedError: {name!r} is the cluster's own, as all below $ is"
            elif not self._rights.may_write(topic):
                who = f"user {user!r}" if user else "who has not logged in"
                found[index] = f"NotAuthorizedError: {who} may not publish to {name!r}"
        for index in found:
            count = sum([run.count for run in meta.runs if run.topic == index])
            self._rights.refuse("publish", meta.topics[index], count)
        return found

    def signed(self, wire: WireEntry, meta: Meta) -> WireEntry:
        """The entry, saying whose it is where something of it is retained."""
        if not self._rights.restricted or not any([run.flags & RETAIN for run in meta.runs]):
            return wire
        runs = tuple([run._replace(origin=0) for run in meta.runs])
        group, _, lengths, body = wire
        return group, pack_meta(meta._replace(runs=runs, origins=(self._rights.author(),))), lengths, body


def without(wire: WireEntry, meta: Meta, refused: dict[int, str]) -> WireEntry | None:
    """The entry without the topics (by index) that are refused; None: nothing is left."""
    group, packed, lengths, body = wire
    count = sum([run.count for run in meta.runs])
    block = Block(group, 0, 0, count - 1, 0, PUBLICATIONS, packed, lengths, body, meta)
    block.payloads()  # raises PeerError where lengths and body disagree, which the cut would hide
    part = select(block, [run.topic not in refused for run in meta.runs for _ in range(run.count)])
    if part is None:
        return None
    kept = part.meta._replace(runs=tuple([run._replace(skip=0) for run in part.meta.runs]))
    return group, pack_meta(kept), part.lengths, part.body


def results_with(meta: Meta, refused: dict[int, str], result: Any) -> Any:
    """The result of an entry of which a part was published: (count, epoch, first offset) or (count, why it was not)."""
    flags = [(refused.get(run.topic, ""), run.count) for run in meta.runs]
    stretches = [(why, sum([count for _, count in part])) for why, part in groupby(flags, lambda each: each[0])]
    if isinstance(result, str):
        return tuple([(count, why or result) for why, count in stretches])
    runs, told = _Taken(result), list[tuple[Any, ...]]()
    for why, count in stretches:
        if why:
            told.append((count, why))
        else:
            told += runs.next(count)
    return tuple(told)


class _Taken:
    """Runs of (count, epoch, first offset), taken piece by piece."""

    def __init__(self, runs: Any) -> None:
        self._runs = [(int(count), int(epoch), int(first)) for count, epoch, first in reversed(runs)]

    def next(self, count: int) -> list[tuple[int, int, int]]:
        """Those of the next `count` records."""
        found: list[tuple[int, int, int]] = []
        while count and self._runs:
            most, epoch, first = self._runs.pop()
            taken = min(count, most)
            found.append((taken, epoch, first))
            count -= taken
            if taken < most:
                # Where nobody remembers where they stand (offset 0 of epoch 0), all have the same place.
                self._runs.append((most - taken, epoch, first + taken if epoch else first))
        return found
