"""A broker's pipelines: publications to the coordinators, deliveries back, over one link to each coordinator.

At most `window_batches` batches are under way untaken, and as many unanswered whose commit somebody waits for; what
arrives meanwhile joins the next one (no timers). Beyond
`queue_bytes_max` unanswered bytes the pipeline is full: publishers' sockets are not read until half of it is gone.
After a broken link the pipeline dials again, tells the coordinator how far it had been served (`resume`), and sends
every unanswered batch again, in order.

Where a group is led by another coordinator from now on, what has not been answered of it moves to that one's pipeline
(`give_up`, `take_over`), in order, with the count of the sequences; answers and deliveries that come late are dropped.
What a coordinator answers with nothing, because it leads the group no more, is put aside until it is known who does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.membership import Member
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import (
    ACK,
    COLUMNS,
    DEAL,
    DELIVER,
    HEADS,
    LEADS,
    PUBLISH,
    REQUEST,
    TAKEN,
    WireEntry,
)

from ...link.link import BEATS, Link
from ...link.sockets import dial_any
from ...loop.background import keep_going, stop_loops
from .entries import Done, GroupEntryBuilder, PublishBatch, SealedEntry
from .stored_compression import StoredCompression

log = logging.getLogger(__name__)

DIAL_FIRST_S = 0.02
DIAL_MOST_S = 1.0


class BlockTaker(Protocol):
    """Who takes what coordinators deliver. `heads`: group -> the offset up to which that has been delivered."""

    heads: dict[int, int]

    def on_blocks(self, wires: Any) -> None:
        """DELIVER arrived: block wire tuples in offset order."""

    def on_heads(self, heads: dict[int, tuple[int, int]]) -> None:
        """HEADS arrived."""


class TellsColumns(Protocol):
    """What conditions ask of publications: see `matching.event_columns`."""

    def of_entries(self, wires: Iterable[WireEntry]) -> Mapping[int, Sequence[Any]]:
        """What is told of these entries, by number."""
        ...


class PipelineUser(Protocol):
    """The broker, as its pipelines see it."""

    @property
    def live(self) -> BlockTaker:
        """Who takes what coordinators deliver."""
        ...

    @property
    def stored_compression(self) -> StoredCompression:
        """What compresses publications for the log."""
        ...

    @property
    def event_columns(self) -> TellsColumns | None:
        """What is told of publications for matchers; None where there are none."""
        ...

    async def register(self, pipeline: Pipeline, link: Link) -> None:
        """Tell a coordinator that was dialled of all back-end subscriptions that concern it."""

    def on_resumed(self, pipeline: Pipeline) -> None:
        """The link stands (again)."""

    def on_leads(self, pipeline: Pipeline, leads: dict[int, int]) -> list[int]:
        """The coordinator serves these groups (and their epochs) from now on. On a link that begins: those of which
        another coordinator was thought to be the leader until now."""

    def on_deal(self, share: str, filter: bytes, rows: Any) -> None:
        """Members of a share are dealt records."""

    def on_room(self) -> None:
        """A full pipeline has room again."""

    def dictionary_content(self, dictionary: int) -> tuple[str, bytes] | None:
        """(family, packed dictionary) of an id that the broker holds."""

    async def on_request(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """A coordinator asks the broker."""


def _tag(tagged: tuple[int, SealedEntry]) -> int:
    return tagged[0]


# More than 25 methods: what is under way on a link, and moves to another one, is one account.
class Pipeline:
    """The link to one coordinator and what is under way on it."""

    def __init__(
        self,
        user: PipelineUser,
        member: Member,
        hello: tuple[str, str, int],
        credentials: tuple[bytes, str],
        *,
        producer: bytes,
        window_batches: int,
        batch_bytes_max: int,
        queue_bytes_max: int,
        beats: Beats = BEATS,
    ) -> None:
        self._user = user
        self._live = user.live
        self._stored_compression = user.stored_compression
        self._event_columns = user.event_columns
        self.member = member
        self._hello = hello
        self._key, self._cluster_id = credentials
        self._producer = producer
        self._window = window_batches
        self._batch_bytes_max = batch_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._beats = beats
        self._builders: dict[int, GroupEntryBuilder] = {}
        self._sealed: deque[SealedEntry] = deque()
        self._batches: dict[int, PublishBatch] = {}
        self._untaken = 0
        self._next_tag = 1
        self._sequences: dict[int, int] = {}
        # Entries whose groups are led elsewhere, until it is known where, each with its batch's tag: batches are not
        # answered in the order in which they were sent, where one also holds entries that wait for their commit.
        self._aside: dict[int, list[tuple[int, SealedEntry]]] = {}
        # Groups that others lead by now, as far as this coordinator has led them.
        self._elsewhere: set[int] = set()
        self._known_dictionaries: set[tuple[int, int]] = set()
        self._flushing = False
        self._queued_bytes = 0
        self._lost = asyncio.Event()
        self._resumed = asyncio.Event()
        self.link: Link | None = None
        # Since when there is no link, microseconds since 1970.
        self.lost_us = time.time_ns() // 1_000
        self.full = False
        self._task = keep_going(self._keep_linked(), f"the link to {member.name}")

    # -- publishing

    def publish(
        self,
        group: int,
        topic: bytes,
        flags: int,
        payloads: list[bytes],
        origin: str,
        done: Done | None,
        mark: tuple[bytes, int, list[int]] | None,
        encoding: int,
        dictionary: int | None,
        expiry_ms: int,
        properties: dict[int, Any] | None,
    ) -> None:
        """Have publications of `group` sent soon, with whatever else gathers; see `Coordinators.publish`."""
        builder = self._builders.get(group)
        if builder is None:
            builder = self._builders[group] = GroupEntryBuilder(group)
        elif builder.full_with(payloads):
            self._seal(group, builder)
            builder = self._builders[group] = GroupEntryBuilder(group)
        self._added(builder.add(topic, flags, payloads, origin, encoding, dictionary, expiry_ms, properties))
        if mark is not None:
            builder.mark(*mark)
        if done is not None:
            builder.when_done(done)

    def _added(self, size_bytes: int) -> None:
        self._queued_bytes += size_bytes
        if self._queued_bytes > self._queue_bytes_max:
            self.full = True
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def forward(self, entry: SealedEntry) -> None:
        """Send an entry that a Python client made (its own producer, so it stays as it is)."""
        self._sealed.append(entry)
        self._added(entry.size_bytes)

    def _seal(self, group: int, builder: GroupEntryBuilder) -> None:
        sequence = self._sequences.get(group, 1)
        self._sequences[group] = sequence + builder.count
        entry = builder.seal(self._producer, self._hello[2], sequence, self._stored_compression)
        # Counted as payload bytes until now; from here on as the entry's bytes, until its ACK.
        self._queued_bytes += entry.size_bytes - builder.size_bytes
        self._sealed.append(entry)

    # -- groups that are led elsewhere

    def give_up(self, groups: Collection[int]) -> tuple[list[SealedEntry], dict[int, int]]:
        """Another coordinator leads these groups from now on: what has not been answered of them, in order, and the
        next sequence of each."""
        self._elsewhere.update(groups)
        given = self._recall(groups)
        for group in groups:
            builder = self._builders.pop(group, None)
            if builder is not None:
                self._seal(group, builder)
        given += [entry for entry in self._sealed if entry.wire[0] in groups]
        self._sealed = deque([entry for entry in self._sealed if entry.wire[0] not in groups])
        self._queued_bytes -= sum([entry.size_bytes for entry in given])
        self._known_dictionaries = {(g, d) for g, d in self._known_dictionaries if g not in groups}
        sequences = {group: self._sequences.pop(group) for group in groups if group in self._sequences}
        self._look_for_room()
        self._flush_soon()  # what of other groups waited behind what is under way no more
        return given, sequences

    def take_over(self, entries: Sequence[SealedEntry], sequences: Mapping[int, int]) -> None:
        """What another pipeline has given up: it goes before anything newer of its groups."""
        self._sequences.update(sequences)
        for entry in entries:
            self.forward(entry)

    def lead(self, groups: Collection[int]) -> None:
        """The coordinator serves these groups (again): what was put aside of them goes to it."""
        self._elsewhere.difference_update(groups)
        if self.link is not None or self._aside:
            # On a link that stands, what is under way was sent before the coordinator was asked to serve these groups:
            # it answers that with nothing. Before what has been sealed since:
            entries = self._recall(groups)
            self._sealed.extendleft(reversed(entries))
            if entries:
                self._flush_soon()

    def _recall(self, groups: Collection[int]) -> list[SealedEntry]:
        """What was put aside or is under way of these groups, in order; what is still answered is of no interest."""
        recalled = [tagged for group in groups for tagged in self._aside.pop(group, ())]
        for tag, batch in list(self._batches.items()):
            recalled += [(tag, entry) for entry in batch.give_up(groups)]
            if all([entry.moved for entry in batch.entries]):
                del self._batches[tag]
                self._taken(batch)
        recalled.sort(key=_tag)
        return [entry for _, entry in recalled]

    def _put_aside(self, tag: int, entry: SealedEntry) -> None:
        self._aside.setdefault(entry.wire[0], []).append((tag, entry))
        self._queued_bytes += entry.size_bytes

    def _flush(self) -> None:
        self._flushing = False
        if self.link is None or not self._resumed.is_set() or self._untaken >= self._window:
            return
        builders, self._builders = self._builders, {}
        hold = sum([batch.awaited for batch in self._batches.values()]) >= self._window
        for group, builder in builders.items():
            if hold and builder.awaited:
                # It could not be committed before those under way anyway: let it grow until one is answered.
                self._builders[group] = builder
            else:
                self._seal(group, builder)
        while self._sealed and self._untaken < self._window:
            self._send_batch()

    def _send_batch(self) -> None:
        entries = [self._sealed.popleft()]
        size = entries[0].size_bytes
        while self._sealed and size + self._sealed[0].size_bytes <= self._batch_bytes_max:
            entries.append(self._sealed.popleft())
            size += entries[-1].size_bytes
        batch = PublishBatch(self._next_tag, entries, asyncio.get_running_loop().time())
        self._next_tag += 1
        self._batches[batch.tag] = batch
        self._transmit(batch)

    def _transmit(self, batch: PublishBatch) -> None:
        assert self.link is not None
        for entry in batch.entries:
            for dictionary in entry.dictionaries:
                self._introduce(entry.wire[0], dictionary)
        self._untaken += 1
        batch.taken = False
        wires = [entry.wire for entry in batch.entries]
        if self._event_columns is not None and (told := self._event_columns.of_entries(wires)):
            self.link.gather((COLUMNS, batch.tag, told))
        self.link.send((PUBLISH, batch.tag, wires))

    def _introduce(self, group: int, dictionary: int) -> None:
        """Have a dictionary in the group's log before the first record that refers to it."""
        if (group, dictionary) in self._known_dictionaries or self.link is None:
            return
        held = self._user.dictionary_content(dictionary)
        if held is not None:
            self._known_dictionaries.add((group, dictionary))
            self.link.call(lambda error, _: None, "dictionary_put", group, dictionary, *held)

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of the coordinator."""
        kind = message[0]
        if kind == DELIVER:
            wires = message[2]
            if self._elsewhere:
                wires = [wire for wire in wires if not (type(wire) is tuple and wire and wire[0] in self._elsewhere)]
            self._live.on_blocks(wires)
        elif kind == ACK:
            self._acknowledged(message[1], message[2])
        elif kind == TAKEN:
            self._taken(self._batches.get(message[1]))
            self._flush()
        elif kind == HEADS:
            self._on_heads(message[1])
        elif kind == LEADS:
            self._user.on_leads(self, message[1])
        elif kind == DEAL:
            self._user.on_deal(message[1], message[2], message[3])
        elif kind == REQUEST:
            link.answer(message[1], self._user.on_request(message[2], message[3]))
        else:
            raise PeerError(f"a coordinator sent a message of kind {kind}")

    def _on_heads(self, heads: dict[int, tuple[int, int]]) -> None:
        elsewhere = self._elsewhere
        self._live.on_heads({g: head for g, head in heads.items() if g not in elsewhere} if elsewhere else heads)

    def resume_groups(self, heads: dict[int, int]) -> None:
        """Ask to be served in groups that the coordinator began to serve while the link stood; what was registered
        before on the link is there by then."""

        def served(error: Exception | None, result: Any) -> None:
            if error is None:
                self._elsewhere.difference_update(heads)
                self._on_heads(result["heads"])
            elif self.link is not None and not isinstance(error, UnavailableError):
                self.link.abort()

        if self.link is not None:
            self.link.call(served, "resume_groups", heads)

    def on_writable(self, link: Link) -> None:
        """Batches are bounded by the window, so a full socket needs no care of its own."""

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The link ended: `_keep_linked` dials again."""
        if self.link is not None:
            self.lost_us = time.time_ns() // 1_000
        self.link = None
        self._resumed.clear()
        self._lost.set()

    def _taken(self, batch: PublishBatch | None) -> None:
        if batch is not None and not batch.taken:
            batch.taken = True
            self._untaken -= 1

    def _acknowledged(self, tag: int, results: Any) -> None:
        batch = self._batches.get(tag)
        if batch is None:
            return
        if len(results) != len(batch.entries):
            raise PeerError(f"{self.member.name} acknowledged {len(results)} of {len(batch.entries)} entries")
        del self._batches[tag]
        self._taken(batch)
        self._queued_bytes -= batch.size_bytes
        for entry, result in zip(batch.entries, results, strict=True):
            if not result and not entry.moved:
                self._put_aside(tag, entry)
                continue
            if isinstance(result, str):
                # Its dictionaries may have been refused with it: the next one brings them again.
                self._known_dictionaries.difference_update([(entry.wire[0], each) for each in entry.dictionaries])
            for done in entry.done:
                done(result)
        self._flush()
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self.full and self._queued_bytes <= self._queue_bytes_max // 2:
            self.full = False
            self._user.on_room()

    # -- the link's life

    async def _keep_linked(self) -> None:
        wait_s = DIAL_FIRST_S
        while True:
            self._lost.clear()
            failed: Exception | None = None
            try:
                await self._open()
                wait_s = DIAL_FIRST_S
                await self._lost.wait()
            except (OSError, LexicastError, TimeoutError) as error:
                failed = error
            if failed is not None:
                log.debug("link to %s: %s", self.member.name, failed)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, DIAL_MOST_S)

    async def _open(self) -> None:
        link = await dial_any(
            self.member.addresses, self._key, self._cluster_id, self._hello, lambda link: self, self._beats
        )
        heads = dict(self._live.heads)
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def served(error: Exception | None, result: Any) -> None:
            if error is None:
                # While the reply is taken off the link: what follows it is live.
                # What comes of groups that were thought to be led elsewhere may lack what was subscribed to there: it
                # is not taken, but asked for once everything is registered here.
                moved = self._user.on_leads(self, result["leads"])
                heads = {group: self._live.heads.get(group, 0) for group in moved}
                self._elsewhere.update(moved)
                self._on_heads(result["heads"])
                self._start_over(link)
                self._user.on_resumed(self)
                if moved:
                    self.resume_groups(heads)
            if not opened.done():
                opened.set_result(None) if error is None else opened.set_exception(error)

        try:
            # One behind the other, without waiting for answers: an error ends the link.
            link.call(lambda error, _: None, "resume", heads)
            await self._user.register(self, link)
            link.call(served, "serve")
            await opened
        except BaseException:
            link.abort()
            raise

    def _start_over(self, link: Link) -> None:
        self.link = link
        self._resumed.set()
        self._known_dictionaries.clear()
        self._untaken = 0
        for batch in self._batches.values():
            self._transmit(batch)
        self._flush()

    def request(self, method: str, *arguments: Any, timeout_s: float | None = None) -> asyncio.Future[Any]:
        """A request to the coordinator: see `Link.request`. Raises UnavailableError when there is no link now."""
        if self.link is None or not self._resumed.is_set():
            raise UnavailableError(f"{self.member.name} cannot be reached now")
        return self.link.request(method, *arguments, timeout_s=timeout_s)

    def call(self, done: Callable[[Exception | None, Any], None], method: str, *arguments: Any) -> None:
        """See `Link.call`; at once with an UnavailableError when there is no link now."""
        if self.link is None or not self._resumed.is_set():
            done(UnavailableError(f"{self.member.name} cannot be reached now"), None)
        else:
            self.link.call(done, method, *arguments)

    def suspect(self) -> None:
        """Others lead what this coordinator led: where it is silent, what it was asked is asked elsewhere, soon."""
        if self.link is not None:
            self.link.suspect()

    def unanswered(self) -> tuple[float, Collection[int]]:
        """Since when the oldest batch is under way, by the loop's clock (inf: none); groups that wait for a leader."""
        return min([batch.since_s for batch in self._batches.values()], default=float("inf")), self._aside.keys()

    async def wait_linked(self) -> None:
        """Return when the link stands."""
        await self._resumed.wait()

    async def close(self) -> None:
        """End the link, nothing is dialled again."""
        await stop_loops(self._task)
        if self.link is not None:
            self.link.close()

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of publications that wait or are under way."""
        return self._queued_bytes
