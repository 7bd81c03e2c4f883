"""The window of PUBLISH messages that are sent and not acknowledged: each keeps its entries and who waits for them.

A message that was given up leaves the window at once; should its acknowledgement still come on the present link, it is
known for one and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lexicast.cluster.errors import PeerError
from lexicast.cluster.positions import Position

from .entries import Entry, Queued

WINDOW: Final = 8


class _Sent(NamedTuple):
    """An unacknowledged PUBLISH message."""

    entries: list[Entry]
    waiting: list[list[Queued]]

    @property
    def since_s(self) -> float:
        """When the oldest of its publications was handed over."""
        return min([records[0][4].since_s for records in self.waiting])


class SentWindow(dict[int, _Sent]):
    """The messages by tag, oldest first, and what became of their publications.

    A dict, for its length is asked for with every publication.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next_tag = 1
        # Tags given up whose acknowledgement may still come on the present link.
        self._given_up: set[int] = set()
        self.published = 0
        self.refused = 0

    def add(self, entries: list[Entry], waiting: list[list[Queued]]) -> int:
        """A message is sent: the tag that it goes with. `waiting`: the records of each entry."""
        tag = self._next_tag
        self._next_tag += 1
        self[tag] = _Sent(entries, waiting)
        return tag

    def again(self) -> Iterator[tuple[int, list[Entry]]]:
        """(tag, entries) of all, in order, for a new link: no acknowledgement of the link before comes on it."""
        self._given_up.clear()
        for tag, sent in self.items():
            yield tag, sent.entries

    def acknowledged(self, tag: int, results: Any) -> None:
        """An ACK arrived: whoever waits is told. Raises PeerError when it does not fit what was sent."""
        if tag in self._given_up:
            self._given_up.discard(tag)
            return
        sent = self.get(tag)
        if sent is None:
            raise PeerError(f"the broker acknowledged publication batch {tag}, which is not under way")
        if len(results) != len(sent.entries):
            raise PeerError(f"the broker acknowledged {len(results)} of {len(sent.entries)} entries")
        del self[tag]
        for (group, *_), records, result in zip(sent.entries, sent.waiting, results, strict=True):
            if isinstance(result, str):
                self._refuse(records, result)
            else:
                self._place(group, records, result)

    def _place(self, group: int, records: list[Queued], runs: Any) -> None:
        if any([len(run) == 2 for run in runs]):
            self._place_some(group, records, runs)
            return
        if sum([count for count, _, _ in runs]) != len(records):
            self._refuse(records, f"the broker gave no positions that fit {len(records)} publications: {runs!r:.80}")
            return
        new = tuple.__new__  # what Position(...) does, without its 0.2 us of checking names
        positions = [new(Position, (group, e, at)) for n, e, first in runs for at in range(first, first + n)]
        self.published += len(records)
        for record, position in zip(records, positions, strict=True):
            awaited = record[4]
            awaited.positions[record[5]] = position
            awaited.left -= 1
            if not awaited.left:
                awaited.finish()

    def _place_some(self, group: int, records: list[Queued], runs: Any) -> None:
        """Of an entry of which a part was refused."""
        if sum([run[0] for run in runs]) != len(records):
            self._refuse(records, f"the broker gave no results that fit {len(records)} publications: {runs!r:.80}")
            return
        at = 0
        for run in runs:
            some = records[at : at + run[0]]
            at += run[0]
            if len(run) == 2:
                self._refuse(some, run[1])
            else:
                self._place(group, some, (run,))

    def _refuse(self, records: list[Queued], reason: str) -> None:
        self.refused += len(records)
        for record in records:
            awaited = record[4]
            awaited.error = reason
            awaited.left -= 1
            if not awaited.left:
                awaited.finish()

    def give_up(self, oldest_s: float) -> list[Queued]:
        """The records of messages that were handed over at `oldest_s` or before; they leave the window."""
        late: list[Queued] = []
        for tag, sent in list(self.items()):
            if sent.since_s <= oldest_s:
                late += [record for records in sent.waiting for record in records]
                del self[tag]
                self._given_up.add(tag)
        return late

    def records(self) -> list[Queued]:
        """All records under way."""
        return [record for sent in self.values() for records in sent.waiting for record in records]

    def count(self) -> int:
        """How many publications are under way."""
        return sum(len(records) for sent in self.values() for records in sent.waiting)
