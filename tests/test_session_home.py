"""The home of sessions: one owner at a time, by compare-and-set; what an older generation wants is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lexicast.actors import session_home
from lexicast.actors.peers import BrokerPeer
from lexicast.actors.session_home import Opened, Sessions
from lexicast.cluster.errors import StaleEpochError, StoreError, UnavailableError
from lexicast.cluster.records import ControlRecord, SessionEnded, SessionSaved

from .harness import eventually

GROUP = 2
CLIENT = "client"
NEVER = 2**63 - 1


class Link:
    """A broker's link that answers `session_yield` as the test says."""

    def __init__(self, answer: Any = None) -> None:
        self.closed = False
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def request(self, *what: Any) -> asyncio.Future[Any]:
        self.asked.append(what)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not Ellipsis:  # an owner that does not answer
            future.set_result(self.answer)
        return future


class Home:
    """`Sessions` over a table that becomes durable when the test says so."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], SessionSaved] = {}
        self.log: list[ControlRecord] = []
        self.waiting: list[tuple[ControlRecord, Callable[[Exception | None], None]]] = []
        self.holds = False
        self.peers: dict[str, BrokerPeer] = {}
        self.sessions = Sessions(self, self.append, self.peers)

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        return self.rows.get((group, client_id))

    def append(self, group: int, record: ControlRecord, done: Callable[[Exception | None], None]) -> None:
        assert group == GROUP
        self.log.append(record)
        self.waiting.append((record, done))
        if not self.holds:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for record, done in waiting:
            if error is None and isinstance(record, SessionSaved):
                self.rows[GROUP, record.client_id] = record
            elif error is None and isinstance(record, SessionEnded):
                self.rows.pop((GROUP, record.client_id), None)
            done(error)

    def broker(self, name: str, answer: Any = None, incarnation: int = 1) -> BrokerPeer:
        link: Any = Link(answer)
        peer = self.peers[name] = BrokerPeer(name, incarnation, link)
        return peer

    async def open(self, peer: BrokerPeer, clean: bool = False, uid: bytes = b"new", now_us: int = 1) -> Opened:
        return await self.sessions.open(peer, GROUP, CLIENT, clean, uid, b"", now_us)


async def test_a_new_session_is_durable_before_it_is_given() -> None:
    home = Home()
    home.holds = True
    opening = asyncio.create_task(home.open(home.broker("a")))
    await asyncio.sleep(0)
    assert not opening.done()
    assert home.waiting
    home.commit()
    assert await opening == Opened(b"new", 1, False, b"")
    assert home.rows[GROUP, CLIENT].owner == "a"


async def test_a_session_that_was_left_is_resumed_with_its_state_and_uid() -> None:
    home = Home()
    a, b = home.broker("a"), home.broker("b")
    first = await home.open(a, uid=b"u1")
    await home.sessions.save(GROUP, CLIENT, first.generation, NEVER, b"state")
    assert home.rows[GROUP, CLIENT].owner == ""
    assert await home.open(b, uid=b"u2") == Opened(b"u1", 2, True, b"state")
    a_link: Any = a.link
    assert a_link.asked == []


async def test_the_owner_hands_over_and_an_older_generation_is_refused() -> None:
    home = Home()
    a, b = home.broker("a", answer=b"latest"), home.broker("b")
    first = await home.open(a)
    second = await home.open(b)
    assert (second.state, second.present, second.generation) == (b"latest", True, first.generation + 1)
    a_link: Any = a.link
    assert a_link.asked == [("session_yield", CLIENT, first.generation, False)]
    with pytest.raises(StaleEpochError):
        await home.sessions.save(GROUP, CLIENT, first.generation, 0, b"late")
    with pytest.raises(StaleEpochError):
        await home.sessions.end(GROUP, CLIENT, first.generation)
    assert home.rows[GROUP, CLIENT].owner == "b"


@pytest.mark.parametrize("answer", [..., UnavailableError("gone"), None], ids=["silent", "gone", "nothing"])
async def test_an_owner_that_does_not_answer_loses_it_with_its_last_saved_state(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_home, "YIELD_TIMEOUT_S", 0.01)
    home = Home()
    first = await home.open(home.broker("a", answer))
    await home.sessions.save(GROUP, CLIENT, first.generation, 0, b"saved")
    assert await home.open(home.broker("b")) == Opened(b"new", 2, True, b"saved")


async def test_an_owner_of_another_incarnation_or_without_a_link_is_not_asked() -> None:
    home = Home()
    await home.open(home.broker("a", ...))
    again = home.broker("a", ..., incarnation=2)
    assert (await home.open(home.broker("b", ...))).generation == 2
    link: Any = again.link
    assert link.asked == []
    closed: Any = home.peers["b"].link
    closed.closed = True
    assert (await home.open(home.broker("c"))).generation == 3
    assert closed.asked == []


async def test_a_clean_start_and_an_expired_session_begin_anew_with_a_higher_generation() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, uid=b"u1")
    await home.sessions.save(GROUP, CLIENT, first.generation, 100, b"state")
    assert await home.open(a, uid=b"u2", now_us=100) == Opened(b"u2", 2, False, b"")
    await home.sessions.save(GROUP, CLIENT, 2, 1_000, b"state")
    assert await home.open(a, clean=True, uid=b"u3", now_us=500) == Opened(b"u3", 3, False, b"")


async def test_of_many_that_come_at_once_each_gets_it_once_in_turn() -> None:
    home = Home()
    brokers = [home.broker(f"b{i}", answer=b"from %d" % i) for i in range(8)]
    found = await asyncio.gather(*[home.open(broker) for broker in brokers])
    assert sorted(opened.generation for opened in found) == list(range(1, 9))
    last = max(found, key=lambda opened: opened.generation)
    owner = brokers[found.index(last)]
    assert home.rows[GROUP, CLIENT].owner == owner.name
    assert all(opened.uid == found[0].uid for opened in found)
    assert home.sessions._locks == {}


async def test_a_new_session_has_the_state_it_is_given_and_never_a_generation_of_the_past() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.sessions.open(a, GROUP, CLIENT, False, b"u1", b"begin", 70)
    assert (first.state, first.generation) == (b"begin", 70)
    await home.sessions.end(GROUP, CLIENT, 70)
    second = await home.sessions.open(a, GROUP, CLIENT, False, b"u2", b"begin", 90)
    assert second.generation > first.generation
    with pytest.raises(StaleEpochError):
        await home.sessions.end(GROUP, CLIENT, first.generation)


async def test_take_overs_are_one_at_a_time_also_when_one_comes_as_another_ends() -> None:
    home = Home()
    await home.open(home.broker("a", answer=b"from a"))
    home.holds = True
    b, c, d = (home.broker(name, answer=b"from " + name.encode()) for name in "bcd")
    first, second = (asyncio.create_task(home.open(broker)) for broker in (b, c))
    await eventually(lambda: bool(home.waiting))
    home.commit()
    await first
    third = asyncio.create_task(home.open(d))
    while not (first.done() and second.done() and third.done()):
        home.commit()
        await asyncio.sleep(0)
    assert (second.result().state, third.result().state) == (b"from b", b"from c")
    links: list[Any] = [b.link, c.link, d.link]
    assert [len(link.asked) for link in links] == [1, 1, 0]


async def test_what_is_on_its_way_counts_before_it_is_durable() -> None:
    home = Home()
    a, b = home.broker("a", answer=b"x"), home.broker("b")
    first = await home.open(a)
    home.holds = True
    saving = asyncio.create_task(home.sessions.save(GROUP, CLIENT, first.generation, NEVER, b"new"))
    await asyncio.sleep(0)
    opening = asyncio.create_task(home.open(b))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    home.commit()
    await saving
    assert (await opening).state == b"new"


async def test_a_failed_write_is_told_and_leaves_what_is_durable() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    home.holds = True
    saving = asyncio.create_task(home.sessions.save(GROUP, CLIENT, first.generation, NEVER, b"lost"))
    await asyncio.sleep(0)
    home.commit(StoreError("the disk"))
    with pytest.raises(StoreError):
        await saving
    found = home.sessions.get(GROUP, CLIENT)
    assert found is not None
    assert (found.state, found.owner) == (b"", "a")


async def test_an_ended_session_is_forgotten() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    await home.sessions.end(GROUP, CLIENT, first.generation)
    assert home.sessions.get(GROUP, CLIENT) is None
    with pytest.raises(StaleEpochError):
        await home.sessions.save(GROUP, CLIENT, first.generation, 0, b"")
