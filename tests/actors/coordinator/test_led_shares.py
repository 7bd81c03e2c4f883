"""Shares at a coordinator: what is told while a member is placed, what could not be written, what is written at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.coordinator.past import Span
from lexicast.actors.coordinator.shares import led_shares
from lexicast.actors.coordinator.shares.led_share import DealtRow, LedShare
from lexicast.actors.coordinator.shares.led_shares import LedShares, ShareRules, row_name
from lexicast.actors.link.link import Link
from lexicast.cluster.blocks import PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import US_PER_S, ManualClock
from lexicast.cluster.errors import LimitError, UnavailableError
from lexicast.cluster.records import SessionSaved
from lexicast.cluster.selection import offsets_of
from lexicast.cluster.shares.places import SharePlace, pack_place, unpack_place
from lexicast.storage.tables.state import Epoch

from ...support.harness import eventually

MEMBER = ("g", b"t/#", "a")


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "LINGER_S", 0.0)


ROW = row_name("g", b"t/#")


def block(first: int, count: int = 1, group: int = 0, topic: bytes = b"t/1", qos: int = 0) -> Block:
    meta = Meta((topic,), (Run(0, 0, qos, RAW, 0, None, -1, count),), (), (), (), ())
    return Block(
        group, 1, first, first + count - 1, 9, PUBLICATIONS, pack_meta(meta), b"\5\0\0\0" * count, b"hello" * count
    )


class Broker:
    """A broker's link, and what it was dealt."""

    def __init__(self, name: str = "broker-0") -> None:
        self.name, self.link, self.closed = name, self, False
        self.dealt: list[int] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        for wire, parts in message[-1]:
            offsets = offsets_of(Block.from_wire(wire))
            for _, numbers in parts:
                self.dealt += offsets if numbers is None else [offsets[number] for number in numbers]

    def flush(self) -> None:
        """Nothing waits."""


def a_broker(name: str = "broker-0") -> Any:
    """In the place of a BrokerPeer and its Link."""
    return Broker(name)


class Home:
    """Rows, durable at once unless `error` is set, or `stays` for ever where that is said."""

    def __init__(self) -> None:
        self.rows: dict[int, SessionSaved] = {}
        self.written: list[int] = []
        self.error: Exception | None = None
        self.stuck: set[int] = set()

    def get(self, group: int, client_id: str) -> SessionSaved | None:
        assert client_id == ROW
        return self.rows.get(group)

    async def keep(self, group: int, session: SessionSaved) -> None:
        await asyncio.sleep(0)
        if group in self.stuck:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        self.written.append(group)
        self.rows[group] = session

    def place(self, group: int) -> SharePlace:
        return unpack_place(self.rows[group].place)


class Past:
    """Reads `blocks`, all at once or one a step, after `errors`; of `broken` groups none."""

    def __init__(self) -> None:
        self.reading = asyncio.Lock()
        self.blocks: list[Block] = []
        self.errors: list[Exception] = []
        self.broken: set[int] = set()
        self.a_block_a_step = False
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def step(self, group: int, offset: int, *_: object) -> Span:
        await self.may_read.wait()
        if group in self.broken:
            raise UnavailableError("it cannot be read")
        if self.errors:
            raise self.errors.pop()
        blocks = [each for each in self.blocks if each.group == group and each.last >= offset]
        if self.a_block_a_step and blocks:
            return Span(blocks[:1], blocks[0].last + 1, False, True)
        return Span(blocks, max([offset, *[each.last + 1 for each in blocks]]), True, True)


class Coordinator:
    """What LedShares sees of its coordinator."""

    def __init__(self, groups: int = 1, rules: ShareRules = led_shares.USUAL_RULES) -> None:
        self.clock, self.home, self.past = ManualClock(), Home(), Past()
        self.groups = {group: SimpleNamespace(delivered=0) for group in range(groups)}
        self.epochs: list[Epoch] = []
        self.routing = SimpleNamespace(taker=None)
        led: Any = SimpleNamespace(
            clock=self.clock,
            when_closed=[],
            routing=self.routing,
            served=self.groups,
            store=SimpleNamespace(groups=groups, epoch_starts=lambda group: self.epochs),
            sequencer=SimpleNamespace(groups=self.groups),
        )
        home: Any = self.home
        past: Any = self.past
        self.shares = LedShares(led, home, past, rules)
        self.closed: Callable[[list[int]], None] = led.when_closed[0]

    async def join(self, broker: Any, held: dict[int, list[int]] | None = None, window: int = 10) -> list[int]:
        answer = await self.shares.join(broker, *MEMBER, window, None, held or {})
        groups: list[int] = answer["groups"]
        return groups

    def deliver(self, published: Block) -> None:
        self.groups[published.group].delivered = published.last + 1
        if self.routing.taker is not None:
            self.routing.taker(published)

    def status(self) -> dict[str, Any]:
        return dict(self.shares.status()["g/t/#"])


def saved(place: SharePlace, expires_us: int) -> SessionSaved:
    return SessionSaved(ROW, b"share", 1, "", 0, 0, 60, expires_us, 0, b"", b"", pack_place(place))


# -- requests on one read of a link


async def test_what_is_told_before_a_member_is_placed_counts() -> None:
    """A link that comes back brings `share_join` and `share_told` at once: what was done is not held for ever."""
    coordinator, broker = Coordinator(), a_broker()
    coordinator.groups[0].delivered = 4
    coordinator.past.blocks = [block(0, 4)]
    coordinator.home.rows[0] = saved(SharePlace(0, 0), coordinator.clock.time_us() + 10**15)
    joined: Any = coordinator.shares.join(broker, *MEMBER, 10, None, {0: [1, 2]})
    coordinator.shares.told(broker, [(*MEMBER, {0: [1]})])
    assert await joined == {"groups": [0]}
    await eventually(lambda: broker.dealt == [0, 3])
    coordinator.shares.told(broker, [(*MEMBER, {0: [0, 2, 3]})])
    assert coordinator.status()["open_records"] == 0
    await coordinator.shares.close()


async def test_a_member_that_leaves_before_it_is_placed_is_none() -> None:
    coordinator, broker = Coordinator(), a_broker()
    joined: Any = coordinator.shares.join(broker, *MEMBER, 10, None, {})
    coordinator.shares.leave(broker, *MEMBER, {})
    assert await joined == {"groups": []}
    coordinator.deliver(block(0))
    await eventually(lambda: not coordinator.shares.status())
    assert not broker.dealt
    assert coordinator.routing.taker is None  # who has no share pays for none
    await coordinator.shares.close()


# -- links that end

OTHER = ("g", b"t/#", "b")


async def dealt_and_cut(coordinator: Coordinator, broker: Any, other: Any, exact: bool) -> None:
    """A member is dealt QoS 1 and QoS 2, and its broker's link ends; then another one joins."""
    await coordinator.shares.join(broker, *MEMBER, 10, None, {}, exact)
    coordinator.deliver(block(0, qos=1))
    coordinator.deliver(block(1, qos=2))
    await eventually(lambda: broker.dealt == [0, 1])
    coordinator.shares.unlinked(broker)
    await coordinator.shares.join(other, *OTHER, 10, None, {}, exact)


async def test_qos_2_is_kept_for_its_member_until_its_broker_is_linked_again() -> None:
    """The client has it, or will: another member would have it too."""
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    await dealt_and_cut(coordinator, broker, other, True)
    await eventually(lambda: other.dealt == [0])
    back = a_broker()
    await coordinator.shares.join(back, *MEMBER, 10, None, {0: [1]}, True)
    assert other.dealt == [0]
    coordinator.shares.told(back, [(*MEMBER, {0: [1]})])
    coordinator.shares.told(other, [(*OTHER, {0: [0]})])
    assert coordinator.status()["open_records"] == 0
    await coordinator.shares.close()


async def test_qos_2_goes_to_another_member_where_its_broker_does_not_go_on_with_it() -> None:
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    await dealt_and_cut(coordinator, broker, other, True)
    back = a_broker()
    await coordinator.shares.join(back, *MEMBER, 10, None, {}, True)
    await eventually(lambda: sorted(other.dealt + back.dealt) == [0, 1])
    await coordinator.shares.close()


async def test_qos_2_goes_to_another_member_where_its_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "RETURN_S", 0.02)
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    await dealt_and_cut(coordinator, broker, other, True)
    await eventually(lambda: other.dealt == [0, 1])
    await coordinator.shares.close()


async def test_a_group_that_is_led_later_is_not_dealt_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first one's time was over, what members held of it went to others before they could say so."""
    monkeypatch.setattr(led_shares, "RETURN_S", 0.1)
    coordinator, broker = Coordinator(), a_broker()
    for group, at in ((0, 0), (1, 5)):
        coordinator.past.blocks.append(block(at, group=group, qos=2))
        coordinator.home.rows[group] = saved(SharePlace(at, at), coordinator.clock.time_us() + 10**15)
    coordinator.groups[0].delivered = 1
    await coordinator.join(broker)
    monkeypatch.setattr(led_shares, "RETURN_S", 60.0)
    coordinator.groups[1] = SimpleNamespace(delivered=6)
    assert await coordinator.join(broker) == [0, 1]
    await eventually(lambda: broker.dealt == [0])
    await asyncio.sleep(0.01)
    assert broker.dealt == [0]
    assert coordinator.status()["open_records"] == 2
    await coordinator.shares.close()


async def test_who_is_sent_qos_1_waits_for_nothing() -> None:
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    await dealt_and_cut(coordinator, broker, other, False)
    await eventually(lambda: other.dealt == [0, 1])
    await coordinator.shares.close()


async def test_members_of_a_broker_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they held is dealt once, when all have left: not from one of them to the next."""
    dealings: list[int] = []
    deal = LedShare.deal

    def counted(self: LedShare) -> dict[Link, list[DealtRow]]:
        dealings.append(len(self.share.members))
        return deal(self)

    monkeypatch.setattr(LedShare, "deal", counted)
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    for number in range(9):
        await coordinator.shares.join(broker, "g", b"t/#", str(number), 10, None, {})
    await coordinator.shares.join(other, *OTHER, 10, None, {})
    for number in range(9):
        coordinator.deliver(block(number, topic=b"t/%d" % number))
    await eventually(lambda: sorted(broker.dealt + other.dealt) == list(range(9)))
    dealings.clear()
    coordinator.shares.unlinked(broker)
    await eventually(lambda: sorted(other.dealt) == list(range(9)))
    assert dealings == [1]
    await coordinator.shares.close()


# -- written


async def test_a_group_whose_place_could_not_be_written_is_not_said_to_be_placed() -> None:
    coordinator, broker, other = Coordinator(), a_broker(), a_broker("broker-1")
    coordinator.home.error = UnavailableError("no quorum")
    with pytest.raises(UnavailableError):
        await coordinator.join(broker)
    with pytest.raises(UnavailableError):
        await coordinator.join(other)
    coordinator.home.error = None
    assert await coordinator.join(broker) == [0]
    assert coordinator.home.place(0) == SharePlace(0, 0)
    await coordinator.shares.close()


async def test_a_member_stays_where_a_group_that_is_led_anew_cannot_be_written_yet() -> None:
    coordinator, broker = Coordinator(), a_broker()
    assert await coordinator.join(broker) == [0]
    coordinator.groups[1] = SimpleNamespace(delivered=0)
    coordinator.home.error = UnavailableError("no quorum")
    with pytest.raises(UnavailableError):
        await coordinator.join(broker)
    coordinator.deliver(block(0))
    await eventually(lambda: broker.dealt == [0])
    coordinator.home.error = None
    assert await coordinator.join(broker) == [0, 1]
    assert broker.dealt == [0]
    await coordinator.shares.close()


async def test_idle_groups_are_written_no_more_than_their_lease_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "ROUND_S", 0.0)
    coordinator, broker = Coordinator(20, ShareRules(expiry_s=1)), a_broker()
    await coordinator.join(broker)
    # While somebody is there it is kept for long: its coordinator may die, and its members come back in time.
    lease_us = coordinator.home.rows[0].expires_us - coordinator.clock.time_us()
    assert lease_us == led_shares.IN_USE_S * US_PER_S
    coordinator.home.written.clear()
    task = asyncio.ensure_future(coordinator.shares.run())
    for _ in range(10):
        coordinator.clock.advance(led_shares.IN_USE_S / 50)
        await asyncio.sleep(0.01)
    assert coordinator.home.written == []
    coordinator.clock.advance(led_shares.IN_USE_S / 4)
    await eventually(lambda: sorted(coordinator.home.written) == list(range(20)))
    coordinator.shares.leave(broker, *MEMBER, {})
    await eventually(lambda: not coordinator.shares.status())
    assert coordinator.home.rows[0].expires_us - coordinator.clock.time_us() == US_PER_S
    task.cancel()
    await coordinator.shares.close()


async def test_a_group_that_cannot_be_written_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "ROUND_S", 0.0)
    coordinator, broker = Coordinator(2), a_broker()
    await coordinator.join(broker)
    coordinator.home.stuck.add(0)

    def stands_at(floor: int) -> bool:
        return coordinator.home.place(1).floor == floor

    task = asyncio.ensure_future(coordinator.shares.run())
    for number in range(3):
        coordinator.deliver(block(number, group=0))
        coordinator.deliver(block(number, group=1))
        await asyncio.sleep(0)
        coordinator.shares.told(broker, [(*MEMBER, {0: [number], 1: [number]})])
        coordinator.clock.advance(2 * led_shares.SAVE_S)
        await eventually(partial(stands_at, number + 1))
    task.cancel()
    await coordinator.shares.close()


# -- read


async def test_what_could_not_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a share that is behind nothing is dealt: nothing else would have it read on."""
    monkeypatch.setattr(led_shares, "READ_AGAIN_S", 0.0)
    coordinator, broker = Coordinator(), a_broker()
    coordinator.groups[0].delivered = 2
    coordinator.past.blocks = [block(0, 2)]
    coordinator.past.errors = [UnavailableError("once")]
    coordinator.home.rows[0] = saved(SharePlace(0, 0), coordinator.clock.time_us() + 10**15)
    await coordinator.join(broker)
    await eventually(lambda: broker.dealt == [0, 1])
    await coordinator.shares.close()


async def test_a_group_that_cannot_be_read_holds_up_no_other() -> None:
    coordinator, broker = Coordinator(2), a_broker()
    for group in (0, 1):
        coordinator.groups[group].delivered = 3
        coordinator.home.rows[group] = saved(SharePlace(0, 0), coordinator.clock.time_us() + 10**15)
    coordinator.past.blocks = [block(number, group=1) for number in range(3)]
    coordinator.past.a_block_a_step = True
    coordinator.past.broken.add(0)
    await coordinator.join(broker)
    await eventually(lambda: broker.dealt == [0, 1, 2], wait_s=led_shares.READ_AGAIN_S / 2)
    await coordinator.shares.close()


async def test_a_share_that_has_ended_writes_no_more_over_the_one_that_came_after_it() -> None:
    coordinator, broker = Coordinator(), a_broker()
    coordinator.groups[0].delivered = 2
    coordinator.past.blocks = [block(0, 2)]
    coordinator.home.rows[0] = saved(SharePlace(0, 0), coordinator.clock.time_us() + 10**15)
    coordinator.past.may_read.clear()
    await coordinator.join(broker)
    await asyncio.sleep(0.01)  # it reads
    coordinator.shares.leave(broker, *MEMBER, {})
    await eventually(lambda: not coordinator.shares.status())
    coordinator.home.written.clear()
    coordinator.past.may_read.set()
    await asyncio.sleep(0.01)
    assert coordinator.home.written == []
    await coordinator.shares.close()


async def test_a_lone_member_that_comes_and_goes_has_little_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it stood was written in all groups each time."""
    monkeypatch.setattr(led_shares, "LINGER_S", 0.05)
    coordinator, broker = Coordinator(20), a_broker()
    await coordinator.join(broker)
    coordinator.home.written.clear()
    for _ in range(5):
        coordinator.shares.leave(broker, *MEMBER, {})
        await asyncio.sleep(0)
        await coordinator.join(broker)
    assert coordinator.home.written == []
    coordinator.deliver(block(0))
    await eventually(lambda: broker.dealt == [0])
    coordinator.shares.leave(broker, *MEMBER, {})
    await eventually(lambda: not coordinator.shares.status())
    assert sorted(coordinator.home.written) == list(range(20))
    assert coordinator.home.place(0) == SharePlace(0, 1, (0,))
    await coordinator.shares.close()


# -- told


async def test_offsets_that_no_record_has_are_no_lag() -> None:
    """Each epoch begins a million offsets beyond the one before."""
    coordinator, broker = Coordinator(), a_broker()
    coordinator.groups[0].delivered = (2 << 20) + 7
    coordinator.epochs = [Epoch(1, 0, -1), Epoch(2, (1 << 20) + 9, 9), Epoch(3, (2 << 20) + 3, (1 << 20) + 11)]
    coordinator.home.rows[0] = saved(SharePlace(4, 6, (4, 5)), coordinator.clock.time_us() + 10**15)
    coordinator.past.may_read.clear()
    await coordinator.join(broker)
    # 4 to 9, then 9 to 11 of the second epoch, and 4 of the third.
    assert coordinator.status()["lag_records"] == 6 + 3 + 4
    coordinator.past.may_read.set()
    await eventually(lambda: coordinator.status()["lag_records"] == 0)
    await coordinator.shares.close()


# -- limits


async def test_one_share_more_than_are_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "SHARES_MAX", 1)
    coordinator, broker = Coordinator(), a_broker()
    await coordinator.join(broker)
    with pytest.raises(LimitError):
        await coordinator.shares.join(broker, "other", b"t/#", "a", 10, None, {})
    await coordinator.shares.close()


async def test_what_is_remembered_of_topics_is_remembered_once_for_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "CHOICES_MAX", 2)
    coordinator, broker = Coordinator(), a_broker()
    await coordinator.join(broker)
    for number in range(9):
        coordinator.deliver(block(number, topic=b"t/%d" % number))
        coordinator.deliver(block(number, topic=b"other/%d" % number))
    await eventually(lambda: broker.dealt == list(range(9)))
    assert len(coordinator.shares._routes) <= 2
    assert len(coordinator.shares._same) <= 2
    await coordinator.shares.close()
