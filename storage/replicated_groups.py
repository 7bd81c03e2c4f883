"""What a store does for groups that other members hold too: promises, what is taken back, shipped and copied.

A promise is durable before it is given (`tables.promises`). What is appended and may not count waits apart from the log
(`log.unapplied_tail`) and can be taken back. A copy of a group is made of its tables (`group_snapshot`) and its log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.recovery import GroupReport

from .commits import Commits
from .environment.environment import Environment
from .environment.guard import Guard
from .file.keys import MAX_OFFSET
from .file.table import WriteTransaction
from .group_snapshot import SnapshotPage, SnapshotPlace, checked_page, clear_step, install_rows, snapshot_page
from .index.index_writer import IndexWriter
from .log.block_log import Log
from .log.block_outline import Outline
from .log.stored_block import StoredBlock, sealed, stored_block
from .log.unapplied_tail import UnappliedTail
from .set_aside import add_set_aside, set_aside_file, set_aside_files
from .table_reader import TableReader
from .tables.counted import CountedMembers, put_counted
from .tables.databases import Databases
from .tables.groups import StoredGroup, put_group_row
from .tables.promises import NOT_PROMISED, Promise, put_promise
from .tables.retained_names import RetainedNames
from .tables.state import Epoch, State
from .tables.topics import TopicIds
from .upkeep.housekeeping import Housekeeping

NOT_COUNTED: Final = CountedMembers(0, ())
# Set aside in a step, between commits.
SET_ASIDE_BYTES: Final = 256 * 1024


class ReplicatedGroups:
    """The part of a `Store` that is concerned; see the module's docstring."""

    environment: Environment
    guard: Guard
    groups: int
    tables: TableReader
    _commits: Commits
    _counted: dict[int, CountedMembers]
    _databases: Databases
    _groups: dict[int, StoredGroup]
    _housekeeping: Housekeeping
    _ids: TopicIds
    _index_writer: IndexWriter
    _log: Log
    _promises: dict[int, Promise]
    _retained_names: RetainedNames
    _state: State
    _tail: UnappliedTail

    # promises

    def promise(self, epochs: Mapping[int, int]) -> None:
        """Take nothing of epochs before these any more; durable on return. What was promised never goes back."""
        self.guard.usable()
        made = {}
        for group, epoch in epochs.items():
            if not (0 <= group < self.groups and 0 <= epoch <= MAX_OFFSET):
                raise UsageError(f"group {group} is not one of this store's {self.groups}, or has no epoch {epoch}")
            if epoch > (known := self._promises.get(group, NOT_PROMISED)).epoch:
                made[group] = known._replace(epoch=epoch)
        if made:
            with self.guard():
                with self.environment.begin() as txn:
                    for group, promise in made.items():
                        put_promise(self._databases, txn, group, promise)
                self._promises.update(made)

    def promised(self, group: int) -> int:
        """The epoch below which the group takes nothing: what was promised, also by leading it, or what its log has."""
        promised, counted = self._promises.get(group, NOT_PROMISED), self._counted.get(group, NOT_COUNTED)
        return max(self._commits.end(group)[1], promised.epoch, counted.epoch)

    def known_epochs(self) -> dict[int, int]:
        """Of each group that has a log, that was led, or for which something was promised, the newest epoch."""
        waiting, groups = self._tail.groups(), list(self._groups.values())
        known = {*[group.number for group in groups if group.last >= 0], *waiting, *self._promises, *self._counted}
        return {group: epoch for group in known if (epoch := self.promised(group))}

    def count_with(self, sets: Mapping[int, tuple[int, tuple[str, ...]]], alone: bool = False) -> None:
        """These groups are led here under these epochs, which are promised by that, and these members may count in
        them from now on, with those that were noted of the same epoch, or `alone`. Durable on return."""
        self.guard.usable()
        made: dict[int, CountedMembers] = {}
        mended: dict[int, Promise] = {}
        for group, (epoch, members) in sets.items():
            known = self._counted.get(group, NOT_COUNTED)
            names = {*members, *known.members} if epoch == known.epoch and not alone else {*members}
            if epoch >= known.epoch and (epoch, names) != (known.epoch, {*known.members}):
                made[group] = CountedMembers(epoch, tuple(sorted(names)))
            if not self._is_whole(group):
                # Nothing else is left of it: its tables follow from here on, whatever they lack.
                mended[group] = self._promises[group]._replace(reflected_below=0)
        if made or mended:
            with self.guard():
                with self.environment.begin() as txn:
                    put_counted(self._databases, txn, made)
                    for group, promise in mended.items():
                        put_promise(self._databases, txn, group, promise)
                self._counted.update(made)
                self._promises.update(mended)

    def reports(self) -> dict[int, GroupReport]:
        """What is known here of each group of which anything is (`cluster.recovery`)."""
        return {group: self._report(group) for group in self.known_epochs()}

    def _report(self, group: int) -> GroupReport:
        (last, epoch), counted = self._commits.end(group), self._counted.get(group, NOT_COUNTED)
        return GroupReport(self.promised(group), epoch, last, self._is_whole(group), *counted)

    def _is_whole(self, group: int) -> bool:
        """Whether the tables of a group are those of its log, or of the beginning of it: not while a copy is made."""
        return self._commits.end(group)[0] + 1 >= self._promises.get(group, NOT_PROMISED).reflected_below

    def truncate(self, group: int, last: int) -> None:
        """Take back what was appended behind offset `last` and is not applied; the youngest blocks first, so that what
        is left if this is interrupted can be taken back as well. Raises UsageError: some of it is applied."""
        self.guard.usable()
        if last + 1 < self.applied_below(group):
            raise UsageError(f"group {group}: offset {last} lies before {self.applied_below(group)}, which is applied")
        known = self._promises.get(group, NOT_PROMISED)
        while count := self._tail.beyond(group, last):
            # The epoch of what goes was promised by taking it.
            made = known._replace(epoch=self.promised(group))
            with self.guard():
                with self.environment.begin() as txn:
                    self._tail.cut(txn, group, count)
                    if made != known:
                        put_promise(self._databases, txn, group, made)
                self._tail.was_cut(group, count)
                if made != known:
                    self._promises[group] = known = made

    def applied_below(self, group: int) -> int:
        """The first offset of a group that the tables have not followed from."""
        known = self._groups.get(group)
        return 0 if known is None else known.last + 1

    def applied_end(self, group: int) -> tuple[int, int, int]:
        """(epoch, last offset, time) of what is applied of a group, whether it is still in the log or not; the offset
        is -1 when there was nothing."""
        known = self._groups.get(group)
        return (0, -1, 0) if known is None else (known.epoch, known.last, known.time_us)

    def end_at(self, group: int, epoch: int, last: int, time_us: int) -> None:
        """The log of a group ends at offset `last`, as that of the store it is a copy of: what lies between has been
        discarded there. So an offset that was given is not given again by whoever has this copy alone. Raises
        UsageError: something waits to be applied."""
        self.guard.usable()
        if self._tail.ends(group) is not None:
            raise UsageError(f"group {group}: what is not applied lies before the end of the log")
        known = self._groups.get(group)
        if known is None:
            known = StoredGroup(group)
            known.first_kept = self._promises.get(group, NOT_PROMISED).first_kept
        if last <= known.last:
            return
        row = known.row(self._ids.next_number(group))._replace(epoch=epoch, last=last, time_us=time_us)
        with self.guard():
            with self.environment.begin() as txn:
                put_group_row(self._databases, txn, group, row)
            if known.first > known.last:
                known.first = last + 1
            if known.entered_below > known.last:
                known.entered_below = last + 1
            known.epoch, known.last, known.time_us = epoch, last, time_us
            self._groups[group] = known

    def set_aside(self, group: int, offset: int, epoch: int) -> int | None:
        """A step: some blocks from offset `offset` on go to the file of what a leader of `epoch` does not have
        (`set_aside`). Returns where to go on, None when there is no more. Raises StoreFullError."""
        self.guard.usable()
        blocks = self.stored(group, offset, SET_ASIDE_BYTES)
        if not blocks:
            return None
        add_set_aside(set_aside_file(self.environment.directory, group, epoch), group, blocks)
        return blocks[-1][0] + 1

    def all_set_aside(self) -> list[str]:
        """The files of what was set aside, by name."""
        return set_aside_files(self.environment.directory)

    def epoch_starts(self, group: int) -> list[Epoch]:
        """The group's last epoch starts, oldest first, as far as its log goes; those not applied yet among them."""
        waiting = self._tail.of(group)
        starts = {start.epoch: start for start in self.tables.epochs(group)}
        for each in waiting:
            starts.update({epoch: Epoch(epoch, first, before) for epoch, first, before in each.starts})
        last = max(waiting[-1].last if waiting else -1, self.applied_below(group) - 1)
        return [starts[epoch] for epoch in sorted(starts) if starts[epoch].first <= last]

    def sealed(self, block: Block) -> StoredBlock:
        """`block` as it is stored, for others that store it too. Any thread. Raises UsageError."""
        return sealed(block)

    def stored(self, group: int, offset: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """(last offset, value) of blocks as they lie in the log, those not applied yet behind the others, from the one
        that holds `offset` on: one at least, where there is one, and about `bytes_max`. Damaged ones are left out."""
        waiting = self._tail.of(group)  # first: what is applied meanwhile is in the log then
        found: list[tuple[int, bytes]] = []
        with self.guard.reading() as txn:
            for head, value in self._log.from_offset(txn, group, offset):
                if found and bytes_max <= 0:
                    return found
                found.append((head.last, bytes(value)))
                bytes_max -= len(value)
            begin = max(offset, found[-1][0] + 1 if found else 0)
            if bytes_max > 0 or not found:
                found += self._tail.values(txn, [each for each in waiting if each.last >= begin], bytes_max)
        return found

    def group_snapshot(self, group: int, place: SnapshotPlace | None) -> tuple[SnapshotPage, SnapshotPlace | None]:
        """A page of what the tables know of a group, for a copy of it (`group_snapshot`); `place`: where the
        page before ended. Returns where to go on, None at the end."""
        known, below = self._groups.get(group), self.applied_below(group)  # first: the tables may know more by then
        first_kept = known.first_kept if known is not None else 0
        with self.guard.reading() as txn:
            return snapshot_page(self._databases, txn, group, place, below, first_kept)

    def install(self, group: int, page: SnapshotPage) -> None:
        """Take a page of another store's tables; the first one in place of what is known here of the group.

        Until the last one has come the tables are of no use; a snapshot that was interrupted begins anew. What is
        applied here and was not there when the snapshot was made, they follow from again. Raises PeerError: it is none.
        """
        self.guard.usable()
        begins, rows, ends = checked_page(group, page)
        if begins:
            # Until the last page has come the tables fit no log: nobody is to lead with them.
            torn = self._promises.get(group, NOT_PROMISED)._replace(reflected_below=MAX_OFFSET)
            with self.guard():
                with self.environment.begin() as txn:
                    put_promise(self._databases, txn, group, torn)
                self._promises[group] = torn
            while self._clear_step(group):
                pass
        known = self._promises.get(group, NOT_PROMISED)
        made = known if ends is None else known._replace(reflected_below=ends[0], first_kept=ends[1])
        again = [] if ends is None else self._applied_from(group, ends[0])
        with self.guard():
            with self._naming() as txn:
                install_rows(self._databases, txn, self._state, self._ids, group, rows)
                self._state.apply(txn, again)
                if made != known:
                    put_promise(self._databases, txn, group, made)
            if made != known:
                self._promises[group] = made
            if group in self._groups:
                self._groups[group].first_kept = max(self._groups[group].first_kept, made.first_kept)
            self._retained_names.forget()

    def _applied_from(self, group: int, below: int) -> list[Outline]:
        """What is applied of a group from offset `below` on: a leader commits, and tells, before its own tables follow,
        so a snapshot of them may lack what is applied here. Damaged blocks are left out."""
        applied = self.applied_below(group)
        found: list[Outline] = []
        if below < applied:
            for last, value in self.stored(group, below, MAX_OFFSET):
                if last < applied:
                    with suppress(PeerError):
                        found.append(stored_block(group, last, value).outline)
        return found

    @contextmanager
    def _naming(self) -> Iterator[WriteTransaction]:
        """A durable transaction that may name topics."""
        try:
            with self.environment.begin() as txn:
                yield txn
                self._index_writer.number_topics(txn)
        except BaseException:
            self._ids.aborted()
            raise
        self._ids.committed()

    def _clear_step(self, group: int) -> bool:
        """Some of what the tables know of a group goes; False when nothing is left."""
        with self.guard(), self._naming() as txn:
            return clear_step(self._databases, txn, self._state, group)

    def forget_group(self, group: int) -> bool:
        """A step, a few ms: something of the group leaves, all of it in the end; what was promised stays. False when
        nothing is left: it is as if the group had never been here. The index is made anew afterwards.

        The youngest blocks go first: what is left if this is interrupted is a log as it once was.
        """
        self.guard.usable()
        if self._tail.ends(group) is not None:
            self.truncate(group, self.applied_below(group) - 1)
            return True
        known = self._groups.get(group)
        if known is not None and known.last >= 0:
            with self.guard():
                self._housekeeping.forget_blocks(group)
            return True
        promise = self._promises.get(group, NOT_PROMISED)
        if promise != (bare := Promise(promise.epoch, 0, 0)):
            with self.guard():
                with self.environment.begin() as txn:
                    put_promise(self._databases, txn, group, bare)
                self._promises[group] = bare
        self._retained_names.forget()
        return self._clear_step(group)
