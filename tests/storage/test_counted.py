"""With whom a leader counts, and what a store reports of its groups: durable, and of the newest epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lexicast.cluster.blocks import Block, control_block
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.records import EpochStart, Subscribed, pack_record
from lexicast.cluster.recovery import GroupReport
from lexicast.storage import group_snapshot
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.maintenance.check import check_coordinator_store
from lexicast.storage.store import Store

BOTH = ("a", "b")


@contextmanager
def opened(directory: Path) -> Iterator[Store]:
    store = Store.open(
        directory, cluster_id="c", member="m", groups=4, options=StoreOptions(retention_s=0), clock=SystemClock()
    )
    try:
        yield store
    finally:
        store.close()


def block(first: int, epoch: int) -> Block:
    subscribed = [pack_record(Subscribed(f"broker-{at}", 1, f"t/{first}/{at}", 0, 0)) for at in range(3)]
    return control_block(0, epoch, first, 1, [pack_record(EpochStart(epoch, first - 1, "m")), *subscribed])


def copy_group(leader: Store, joiner: Store) -> None:
    """Group 0's tables, page by page."""
    place = None
    while True:
        page, place = leader.group_snapshot(0, place)
        joiner.install(0, page)
        if place is None:
            return


def test_whom_a_leader_counts_with_is_durable_and_promises_its_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.reports() == {}
        store.count_with({0: (2, BOTH[:1]), 1: (5, BOTH)})
        store.count_with({0: (2, BOTH[1:])})
        store.commit([block(0, 2)])
        store.promise({2: 7})
    with opened(tmp_path) as store:
        assert store.reports() == {
            0: GroupReport(2, 2, 3, True, 2, BOTH),
            1: GroupReport(5, 0, -1, True, 5, BOTH),
            2: GroupReport(7, 0, -1, True, 0, ()),
        }
        assert store.promised(1) == store.known_epochs()[1] == 5
        store.count_with({0: (2, BOTH[:1])}, alone=True)  # the other one was dropped
        store.count_with({1: (4, BOTH[:1])}, alone=True)  # of an epoch that is over
        store.count_with({2: (8, BOTH[1:])})
        assert {group: report.counted for group, report in store.reports().items()} == {0: ("a",), 1: BOTH, 2: ("b",)}
    assert check_coordinator_store(tmp_path).sound


def test_a_snapshot_of_tables_that_were_behind_takes_nothing_from_who_was_ahead(tmp_path: Path) -> None:
    """A leader tells what is committed before its own tables have followed from it."""
    with opened(tmp_path / "leader") as leader, opened(tmp_path / "joiner") as joiner:
        blocks = [block(first, 2 + first) for first in (0, 4, 8)]
        leader.commit(blocks, {0: 4})
        joiner.commit(blocks, {0: 12})
        rows = list(joiner.tables.subscriptions(0))
        assert len(list(leader.tables.subscriptions(0))) < len(rows)
        copy_group(leader, joiner)
        assert list(joiner.tables.subscriptions(0)) == rows
        assert [start.epoch for start in joiner.tables.epochs(0)] == [2, 6, 10]
        joiner.commit([block(12, 14)], {0: 16})
    with opened(tmp_path / "joiner") as joiner:
        assert len(list(joiner.tables.subscriptions(0))) == len(rows) + 3


def test_a_copy_that_was_interrupted_is_not_whole_and_is_led_only_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_snapshot, "ROWS_A_PAGE", 2)
    with opened(tmp_path / "leader") as leader, opened(tmp_path / "joiner") as joiner:
        leader.commit([block(0, 2)])
        joiner.commit([block(0, 2)])
        assert joiner.reports()[0].whole
        page, place = leader.group_snapshot(0, None)
        assert place is not None
        joiner.install(0, page)
        assert not joiner.reports()[0].whole
    with opened(tmp_path / "leader") as leader, opened(tmp_path / "joiner") as joiner:
        assert not joiner.reports()[0].whole
        copy_group(leader, joiner)
        assert joiner.reports()[0].whole
        joiner.install(0, leader.group_snapshot(0, None)[0])
        # Nobody has more of the group: what is written from here on is in the tables again.
        joiner.count_with({0: (9, ("m",))})
        joiner.commit([block(100, 9)])
        assert joiner.reports()[0] == GroupReport(9, 9, 103, True, 9, ("m",))
        assert [start.epoch for start in joiner.tables.epochs(0)][-1] == 9
