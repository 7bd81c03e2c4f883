"""The home of sessions: one owner at a time, by compare-and-set; what an older generation wants is refused; whom nobody
owns is looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from lexicast.actors.coordinator import session_home
from lexicast.actors.coordinator.peers import BrokerPeer
from lexicast.actors.coordinator.session_home import SessionHome
from lexicast.actors.coordinator.session_owners import ORPHANED_S
from lexicast.actors.mqtt.codec.packets import Will
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.session_state import filters_of, place_of, restore, will_bytes
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import PeerError, StaleEpochError, StoreError, UnavailableError, UsageError
from lexicast.cluster.protocol.session_floor import packed_exceptions
from lexicast.cluster.protocol.sessions import SessionClaim, SessionGrant, SessionHeld, SessionLeft
from lexicast.cluster.records import ControlRecord, SessionEnded, SessionMoved, SessionSaved
from lexicast.storage.tables.sessions import due_us

from ...support.harness import eventually

GROUP = 2
CLIENT = "client"
HOUR = 3_600
NEVER = 2**63 - 1
US = 1_000_000
NOTHING_YET, NOBODY = (), None
WILL = will_bytes(Will(b"w", b"gone"))
WAITS = will_bytes(Will(b"w", b"gone", properties={24: 60}))


class Link:
    """A broker's link that answers `session_yield` as the test says, and takes wills."""

    def __init__(self, answer: Any) -> None:
        self.closed = False
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []
        self.wills: list[bytes] = []
        self.will_users: list[str] = []
        self.will_error: Exception | None = None

    def request(self, method: str, *what: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if method == "session_will":
            if self.will_error is None:
                self.wills.append(what[1])
                self.will_users.append(what[2])
                future.set_result(None)
            else:
                future.set_exception(self.will_error)
            return future
        self.asked.append((method, *what))
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not Ellipsis:  # an owner that does not answer
            future.set_result(self.answer)
        return future


class Table:
    """What is durable."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], SessionSaved] = {}

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        return self.rows.get((group, client_id))

    def sessions(self, group: int) -> Iterable[SessionSaved]:
        return [row for (number, _), row in self.rows.items() if number == group]

    def due_sessions(self, now_us: int, limit: int, groups: object = None) -> list[tuple[int, SessionSaved]]:
        return [(group, row) for (group, _), row in self.rows.items() if 0 < due_us(row) <= now_us][:limit]


class Home:
    """`Sessions` over a table that becomes durable when the test says so."""

    def __init__(self) -> None:
        self.table = Table()
        self.rows = self.table.rows
        self.log: list[ControlRecord] = []
        self.waiting: list[tuple[ControlRecord, Callable[[Exception | None], None]]] = []
        self.holds = False
        self.peers: dict[str, BrokerPeer] = {}
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        """A coordinator that knows what is durable."""
        self.peers.clear()
        self.sessions = SessionHome(self.table, self.append, self.peers, self.clock)

    def append(self, group: int, record: ControlRecord, done: Callable[[Exception | None], None]) -> None:
        assert group == GROUP
        self.log.append(record)
        self.waiting.append((record, done))
        if not self.holds:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for record, done in waiting:
            if error is None:
                self.apply(record)
            done(error)

    def apply(self, record: ControlRecord) -> None:
        match record:
            case SessionSaved():
                self.rows[GROUP, record.client_id] = record
            case SessionMoved():
                changed = {name: getattr(record, name) for name in record._fields if getattr(record, name) != b""}
                self.rows[GROUP, record.client_id] = self.rows[GROUP, record.client_id]._replace(**changed)
            case SessionEnded():
                self.rows.pop((GROUP, record.client_id), None)

    def broker(self, name: str, answer: Any = NOBODY, incarnation: int = 1) -> BrokerPeer:
        link: Any = Link(answer)
        known = self.peers.get(name)
        peer = self.peers[name] = BrokerPeer(name, incarnation, link)
        self.sessions.owners.linked(peer, known is None or known.incarnation < incarnation)
        return peer

    def lose(self, peer: BrokerPeer) -> None:
        """The broker's link breaks."""
        link(peer).closed = True
        self.sessions.owners.unlinked(peer.name)

    async def open(self, peer: BrokerPeer, connection: int = 1, **asked: Any) -> SessionGrant:
        known: dict[str, Any] = {
            "clean": False,
            "uid": b"new",
            "connection": connection,
            "expiry_s": HOUR,
            "will": b"",
            "filters": b"",
            "place": b"begin",
        }
        return await self.sessions.open(peer, GROUP, CLIENT, SessionClaim(**known | asked))

    async def save(self, generation: int, place: bytes, filters: bytes | None = None) -> None:
        await self.sessions.save(GROUP, CLIENT, generation, SessionLeft(HOUR, 0, 0, filters, place))

    async def leave(
        self, generation: int, place: bytes = b"left", expires_us: int = NEVER, will_us: int = 0, expiry_s: int = HOUR
    ) -> None:
        await self.sessions.save(GROUP, CLIENT, generation, SessionLeft(expiry_s, expires_us, will_us, None, place))

    async def sweep(self, seconds: float = 0.0) -> None:
        """Time passes; what is due then happens."""
        self.clock.advance(seconds)
        for _ in range(3):
            self.sessions.sweep([GROUP])
            await eventually(lambda: not self.sessions._tasks)

    def get(self) -> SessionSaved | None:
        return self.sessions.get(GROUP, CLIENT)

    def row(self) -> SessionSaved:
        return self.rows[GROUP, CLIENT]


def link(peer: BrokerPeer) -> Any:
    return peer.link


def place(cursor: int, received: bool = False) -> bytes:
    session = Session(CLIENT, b"u", 1)
    session.cursor, session.received = {GROUP: cursor}, {5: 1}
    return place_of(session, received)


def read(filters: bytes, found: bytes) -> Session:
    session = Session(CLIENT, b"u", 1)
    restore(session, filters or filters_of(session), found)
    return session


# -- taken over


async def test_a_new_session_is_durable_before_it_is_given() -> None:
    home = Home()
    home.holds = True
    opening = asyncio.create_task(home.open(home.broker("a")))
    await asyncio.sleep(0)
    assert not opening.done()
    assert home.waiting
    home.commit()
    assert await opening == SessionGrant(b"new", home.clock.time_us(), False, b"", b"begin")
    assert home.row().owner == "a"


async def test_a_session_that_was_left_is_resumed_with_its_state_and_uid() -> None:
    home = Home()
    a, b = home.broker("a"), home.broker("b")
    first = await home.open(a, uid=b"u1")
    await home.leave(first.generation)
    assert home.row().owner == ""
    assert await home.open(b, uid=b"u2") == SessionGrant(b"u1", first.generation + 1, True, b"", b"left")
    assert link(a).asked == []


async def test_the_owner_hands_over_and_an_older_generation_is_refused() -> None:
    home = Home()
    a, b = home.broker("a", answer=(b"filters", b"latest")), home.broker("b")
    first = await home.open(a)
    second = await home.open(b)
    assert second == SessionGrant(b"new", first.generation + 1, True, b"filters", b"latest")
    assert link(a).asked == [("session_yield", CLIENT, first.generation, False)]
    with pytest.raises(StaleEpochError):
        await home.save(first.generation, b"late")
    with pytest.raises(StaleEpochError):
        await home.sessions.end(GROUP, CLIENT, first.generation)
    assert home.row().owner == "b"


@pytest.mark.parametrize("answer", [..., UnavailableError("gone"), NOBODY], ids=["silent", "gone", "nobody"])
async def test_an_owner_that_does_not_answer_loses_it_with_its_last_saved_state(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it received since, and which packet ids it gave, nobody knows."""
    monkeypatch.setattr(session_home, "YIELD_TIMEOUT_S", 0.01)
    home = Home()
    first = await home.open(home.broker("a", answer))
    await home.save(first.generation, place(9, received=True))
    second = await home.open(home.broker("b"))
    found = read(second.filters, second.place)
    assert (second.present, found.cursor, found.received) == (True, {GROUP: 9}, {})
    assert found.next_id > 30_000
    assert home.row().place == second.place  # the next one who takes it goes on from there


async def test_an_owner_that_has_not_begun_has_changed_nothing() -> None:
    home = Home()
    a = home.broker("a", NOTHING_YET)
    first = await home.open(a, will=WILL)
    await home.leave(first.generation, place(9, received=True))
    await home.open(a, 2, will=WILL)
    third = await home.open(home.broker("b"))
    assert third.place == place(9, received=True)
    assert link(home.peers["b"]).wills == []  # the connection was never accepted


async def test_an_owner_of_another_incarnation_or_without_a_link_is_not_asked() -> None:
    home = Home()
    first = await home.open(home.broker("a", ...))
    again = home.broker("a", ..., incarnation=2)
    assert (await home.open(home.broker("b", ...))).generation == first.generation + 1
    assert link(again).asked == []
    home.lose(home.peers["b"])
    assert (await home.open(home.broker("c"))).generation == first.generation + 2
    assert link(home.peers["b"]).asked == []


async def test_what_was_given_to_a_connection_that_never_heard_of_it_is_given_back() -> None:
    """How far its broker has got says nothing of it: what was delivered there, it has not got."""
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    await home.leave(first.generation, place(9))
    await home.open(a, 2, will=WILL)
    home.sessions.stand(a, 3, {GROUP: 50}, {2: None})
    await home.sessions.forgo(a, GROUP, CLIENT, 2)
    assert home.row().owner == ""
    assert home.row().expires_us == home.clock.time_us() + HOUR * US
    home.sessions.stand(a, 3, {}, {})
    await home.sweep(1)
    b = home.broker("b")
    found = await home.open(b)
    assert read(found.filters, found.place).cursor == {GROUP: 9}
    assert link(a).wills == link(b).wills == []  # the connection was never accepted


async def test_one_that_ends_with_its_connection_is_gone_where_nobody_heard_of_it() -> None:
    home = Home()
    a = home.broker("a")
    await home.open(a, expiry_s=0, will=WAITS)
    await home.sessions.forgo(a, GROUP, CLIENT, 1)
    assert home.get() is None
    await home.sweep(100)
    assert link(a).wills == []


async def test_what_another_connection_has_is_not_given_back() -> None:
    home = Home()
    a = home.broker("a")
    await home.open(a, 5)
    await home.sessions.forgo(a, GROUP, CLIENT, 4)
    await home.sessions.forgo(a, GROUP, CLIENT, 6)  # whose question never came
    assert home.row().owner == "a"
    await home.open(home.broker("b"), 1)
    await home.sessions.forgo(a, GROUP, CLIENT, 9)
    assert home.row().owner == "b"
    await home.sessions.forgo(home.broker("b", incarnation=2), GROUP, CLIENT, 9)
    assert home.row().owner == "b"


async def test_a_clean_start_and_an_expired_session_begin_anew_with_a_higher_generation() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, uid=b"u1")
    now_us = home.clock.time_us()
    await home.leave(first.generation, expires_us=now_us + US)
    home.clock.advance(1)
    second = await home.open(a, 2, uid=b"u2")
    assert (second.uid, second.present, second.place) == (b"u2", False, b"begin")
    assert second.generation > first.generation
    await home.leave(second.generation)
    third = await home.open(a, 3, clean=True, uid=b"u3")
    assert (third.uid, third.present, third.place) == (b"u3", False, b"begin")


async def test_asked_again_it_answers_the_same() -> None:
    """The link broke before the answer came."""
    home = Home()
    a = home.broker("a", answer=(b"", b"never asked"))
    new = await home.open(a, will=WILL, uid=b"mine")
    assert await home.open(a, will=WILL, uid=b"mine") == new
    assert not new.present
    await home.leave(new.generation)
    resumed = await home.open(a, 2, will=WILL, uid=b"other")
    assert await home.open(a, 2, will=WILL, uid=b"other") == resumed
    assert resumed.present
    assert (link(a).asked, link(a).wills, len(home.log)) == ([], [], 3)
    with pytest.raises(StaleEpochError):
        await home.open(a, 1, will=WILL, uid=b"mine")


async def test_of_many_that_come_at_once_each_gets_it_once_in_turn() -> None:
    home = Home()
    brokers = [home.broker(f"b{i}", answer=(b"", b"from %d" % i)) for i in range(8)]
    found = await asyncio.gather(*[home.open(broker) for broker in brokers])
    assert len({opened.generation for opened in found}) == 8
    last = max(found, key=lambda opened: opened.generation)
    owner = brokers[found.index(last)]
    assert home.row().owner == owner.name
    assert all(opened.uid == found[0].uid for opened in found)
    assert len(home.sessions._turns) == 0


async def test_a_session_is_never_given_to_another_user() -> None:
    home = Home()
    a, b = home.broker("a", (b"handed over", b"place")), home.broker("b")
    first = await home.open(a, user="ada")
    assert (first.present, first.user) == (False, "ada")
    for clean, user in ((False, "bob"), (True, "bob"), (False, ""), (True, "")):
        assert await home.open(b, 5, clean=clean, user=user) == SessionGrant(b"", 0, False, b"", b"", "ada")
    assert link(a).asked == []  # its owner is not disturbed
    await home.leave(first.generation)
    assert (await home.open(b, 6, user="bob")).user == "ada"
    again = await home.open(b, 7, user="ada")
    assert (again.present, again.user, again.place) == (True, "ada", b"left")
    assert home.rows[GROUP, CLIENT].user == "ada"


async def test_a_session_of_a_user_who_is_gone_is_ended_for_whoever_says_so() -> None:
    home = Home()
    a, b = home.broker("a", (b"handed over", b"place")), home.broker("b")
    first = await home.open(a, user="ada", will=WILL)
    assert (await home.open(b, user="bob", over="eve")).user == "ada"
    taken = await home.open(b, user="bob", over="ada")
    assert (taken.present, taken.user, taken.place) == (False, "bob", b"begin")
    assert link(a).asked == [("session_yield", CLIENT, first.generation, True)]


async def test_a_session_that_is_nobodys_ends_where_a_user_comes_but_not_the_other_way_round() -> None:
    home = Home()
    a, b = home.broker("a", (b"handed over", b"place")), home.broker("b")
    first = await home.open(a)
    await home.leave(first.generation)
    taken = await home.open(b, user="ada")
    assert (taken.present, taken.user) == (False, "ada")
    await home.leave(taken.generation)
    assert (await home.open(a, 2)).user == "ada"


async def test_a_session_that_has_expired_is_nobodys() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, user="ada")
    await home.leave(first.generation, expires_us=home.clock.time_us() + US)
    assert (await home.open(a, 2, user="bob")).user == "ada"
    home.clock.advance(1.0)
    taken = await home.open(a, 3, user="bob")
    assert (taken.present, taken.user) == (False, "bob")


async def test_sessions_that_are_told_again_keep_their_user_and_wills_name_it() -> None:
    home = Home()
    a, b = home.broker("a"), home.broker("b")
    held = SessionHeld(GROUP, CLIENT, b"u", 7, 1, False, "ada")
    assert home.sessions.hold(a, [held]) == []
    assert (await home.open(b, 2, user="bob")).user == "ada"
    armed = await home.open(b, 3, user="ada", will=WAITS)
    await home.leave(armed.generation, will_us=home.clock.time_us() + US)
    await home.sweep(2.0)
    assert [wills for wills in (link(a).wills, link(b).wills) if wills] == [[WAITS]]
    assert {user for each in (a, b) for user in link(each).will_users} == {"ada"}


async def test_who_comes_while_another_one_is_written_waits_for_it_also_where_that_fails() -> None:
    home = Home()
    home.holds = True
    before = asyncio.all_tasks()
    claim = SessionClaim(False, b"u1", 1, HOUR, b"", b"", b"")
    first = home.sessions.open(home.broker("a"), GROUP, CLIENT, claim)
    assert asyncio.all_tasks() == before  # a task for each of a thousand that return would cost as much again
    second = asyncio.create_task(home.open(home.broker("b"), 1, uid=b"u2"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(home.log) == 1
    home.commit(StoreError("full"))
    with pytest.raises(StoreError):
        await first
    await eventually(lambda: bool(home.waiting))
    home.commit()
    assert (await second).uid == b"u2"
    assert len(home.sessions._turns) == 0


async def test_a_new_session_has_the_state_it_is_given_and_never_a_generation_of_the_past() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    await home.sessions.end(GROUP, CLIENT, first.generation)
    home.clock.advance(1)
    second = await home.open(a, 2)
    assert second.generation > first.generation
    with pytest.raises(StaleEpochError):
        await home.sessions.end(GROUP, CLIENT, first.generation)


async def test_take_overs_are_one_at_a_time_also_when_one_comes_as_another_ends() -> None:
    home = Home()
    await home.open(home.broker("a", answer=(b"", b"from a")))
    home.holds = True
    b, c, d = (home.broker(name, answer=(b"", b"from " + name.encode())) for name in "bcd")
    first, second = (asyncio.create_task(home.open(broker)) for broker in (b, c))
    await eventually(lambda: bool(home.waiting))
    home.commit()
    await first
    third = asyncio.create_task(home.open(d))
    while not (first.done() and second.done() and third.done()):
        home.commit()
        await asyncio.sleep(0)
    assert (second.result().place, third.result().place) == (b"from b", b"from c")
    assert [len(link(peer).asked) for peer in (b, c, d)] == [1, 1, 0]


async def test_what_is_on_its_way_counts_before_it_is_durable() -> None:
    home = Home()
    a, b = home.broker("a", answer=(b"", b"x")), home.broker("b")
    first = await home.open(a)
    home.holds = True
    saving = asyncio.create_task(home.leave(first.generation, b"new"))
    await asyncio.sleep(0)
    opening = asyncio.create_task(home.open(b))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    home.commit()
    await saving
    assert (await opening).place == b"new"


async def test_a_failed_write_is_told_and_leaves_what_is_durable() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    home.holds = True
    saving = asyncio.create_task(home.leave(first.generation, b"lost"))
    await asyncio.sleep(0)
    home.commit(StoreError("the disk"))
    with pytest.raises(StoreError):
        await saving
    found = home.get()
    assert found is not None
    assert (found.place, found.owner) == (b"begin", "a")


async def test_what_could_not_even_be_begun_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home()
    a = home.broker("a")

    def refuse(*record: Any) -> None:
        raise UsageError("the group is not led here")

    with monkeypatch.context() as patch:
        patch.setattr(home.sessions, "_append", refuse)
        with pytest.raises(UsageError):
            await home.open(a)
    assert home.get() is None
    async with asyncio.timeout(5):
        assert not (await home.open(a)).present


async def test_an_ended_session_is_forgotten() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    await home.sessions.end(GROUP, CLIENT, first.generation)
    assert home.get() is None
    with pytest.raises(StaleEpochError):
        await home.save(first.generation, b"")


# -- what is written


async def test_what_changed_is_written_and_nothing_where_nothing_did() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, will=WILL)
    await home.save(first.generation, b"place", b"filters")
    await home.save(first.generation, b"place", b"filters")
    await home.leave(first.generation)
    second = await home.open(a, 2, will=WILL)
    await home.save(second.generation, b"further")
    await home.leave(second.generation)
    await home.open(a, 3, will=WAITS)
    kinds = [type(record) for record in home.log]
    assert kinds == [SessionSaved] * 2 + [SessionMoved] * 4 + [SessionSaved]
    taken = home.log[3]
    assert isinstance(taken, SessionMoved)
    assert taken.place == b""


async def test_a_session_that_ends_with_its_connection_is_not_written() -> None:
    home = Home()
    a, b = home.broker("a", answer=(b"", b"")), home.broker("b")
    first = await home.open(a, expiry_s=0, clean=True)
    second = await home.open(b, expiry_s=0, clean=True, uid=b"other")
    assert link(a).asked == [("session_yield", CLIENT, first.generation, True)]
    assert second.generation > first.generation
    with pytest.raises(StaleEpochError):
        await home.sessions.end(GROUP, CLIENT, first.generation)
    await home.sessions.end(GROUP, CLIENT, second.generation)
    assert (home.log, home.get()) == ([], None)


async def test_it_ends_the_one_that_was_there() -> None:
    home = Home()
    a = home.broker("a", answer=(b"", b""))
    first = await home.open(a)
    await home.leave(first.generation)
    second = await home.open(a, 2, expiry_s=0, clean=True, uid=b"other")
    assert home.rows == {}
    found = home.get()
    assert found is not None
    assert (found.uid, found.generation) == (b"other", second.generation)
    third = await home.open(a, 3, uid=b"third")
    assert (third.present, home.row().uid) == (False, b"third")


async def test_a_coordinator_that_was_restarted_is_told_of_them_again() -> None:
    home = Home()
    a = home.broker("a", answer=(b"", b""))
    first = await home.open(a, expiry_s=0, uid=b"one")
    home.start()
    again = home.broker("a", answer=(b"", b""))
    assert home.sessions.hold(again, [SessionHeld(GROUP, CLIENT, b"one", first.generation, 1, False)]) == []
    await home.open(home.broker("b"), expiry_s=0, uid=b"two")
    assert link(again).asked == [("session_yield", CLIENT, first.generation, False)]


async def test_of_two_that_were_served_meanwhile_the_older_lets_go() -> None:
    home = Home()
    a = home.broker("a", answer=(b"", b""))
    first = await home.open(a, expiry_s=0, uid=b"one")
    home.start()
    home.clock.advance(1)
    b = home.broker("b", answer=(b"", b""))
    second = await home.open(b, expiry_s=0, uid=b"two")
    again = home.broker("a", answer=(b"", b""))
    held = SessionHeld(GROUP, CLIENT, b"one", first.generation, 1, False)
    assert home.sessions.hold(again, [held]) == [(CLIENT, first.generation)]
    found = home.get()
    assert found is not None
    assert (found.owner, found.generation) == ("b", second.generation)


async def test_of_two_that_were_served_meanwhile_the_older_lets_go_also_where_it_is_told_of_first() -> None:
    home = Home()
    a, b = home.broker("a", answer=(b"", b"")), home.broker("b", answer=(b"", b""))
    home.sessions.hold(a, [SessionHeld(GROUP, CLIENT, b"one", 5, 1, False)])
    assert home.sessions.hold(b, [SessionHeld(GROUP, CLIENT, b"two", 7, 1, False)]) == []
    await eventually(lambda: bool(link(a).asked))
    assert link(a).asked == [("session_yield", CLIENT, 5, True)]


async def test_a_broker_that_was_cut_off_hears_of_what_it_has_lost() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    home.lose(a)
    held = SessionHeld(GROUP, CLIENT, b"new", first.generation, 1, True)
    assert home.sessions.hold(home.broker("a"), [held]) == []
    home.lose(home.peers["a"])
    await home.open(home.broker("b"))
    assert home.sessions.hold(home.broker("a"), [held]) == [(CLIENT, first.generation)]


# -- sessions that end, and wills


@pytest.mark.parametrize("lives", [True, False])
async def test_a_session_with_expiry_0_ends_when_another_connection_takes_its_place(lives: bool) -> None:
    """[MQTT-3.1.2-6], [MQTT-3.1.4-3]: nothing of it is carried over, and its will goes out."""
    home = Home()
    a = home.broker("a", answer=(b"filters", b"latest"))
    await home.open(a, expiry_s=0, will=WAITS, uid=b"one")
    if not lives:
        home.lose(a)
    b = home.broker("b")
    second = await home.open(b, uid=b"two")
    assert second == SessionGrant(b"two", second.generation, False, b"", b"begin")
    # A living owner publishes it itself.
    assert link(b).wills == ([] if lives else [WAITS])


@pytest.mark.parametrize(
    ("will", "clean", "published"),
    [(WILL, False, True), (WILL, True, True), (WAITS, False, False), (WAITS, True, True)],
)
async def test_the_will_of_a_broker_that_died(will: bytes, clean: bool, published: bool) -> None:
    """The one that takes the session over publishes it, unless it was to wait for just that [MQTT-3.1.3-9]."""
    home = Home()
    a = home.broker("a")
    await home.open(a, will=will)
    home.lose(a)
    b = home.broker("b")
    await home.open(b, clean=clean, uid=b"two")
    assert link(b).wills == ([will] if published else [])
    await home.sweep(ORPHANED_S + 100)
    assert link(b).wills == ([will] if published else [])


@pytest.mark.parametrize(("clean", "published"), [(False, False), (True, True)])
async def test_a_will_that_waits_is_due_when_its_session_ends(clean: bool, published: bool) -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, will=WAITS)
    await home.leave(first.generation, will_us=home.clock.time_us() + 60 * US)
    await home.sweep(59)
    await home.open(a, 2, clean=clean, uid=b"two")
    assert link(a).wills == ([WAITS] if published else [])
    await home.sweep(60)
    assert link(a).wills == ([WAITS] if published else [])


async def test_a_will_goes_out_when_it_is_due_through_whoever_is_there() -> None:
    home = Home()
    first = await home.open(home.broker("a"), will=WAITS)
    due = home.clock.time_us() + 60 * US
    await home.leave(first.generation, expires_us=due + HOUR * US, will_us=due)
    home.start()  # a coordinator's restart, and no broker is there yet
    await home.sweep(59.9)
    dead, b = home.broker("dead"), home.broker("b")
    link(dead).will_error = UnavailableError("it has just died")
    assert link(b).wills == []
    await home.sweep(0.1)
    assert link(b).wills == [WAITS]
    await home.sweep(1)
    assert link(b).wills == [WAITS]
    assert (home.row().will_us, home.row().expires_us) == (0, due + HOUR * US)
    await home.sweep(HOUR)
    assert home.rows == {}


async def test_a_will_and_the_end_at_once() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, will=WAITS)
    due = home.clock.time_us() + US
    await home.leave(first.generation, expires_us=due, will_us=due)
    link(a).will_error = UnavailableError("not now")
    await home.sweep(1)
    assert home.row().will_us == due  # it has not gone out: the session stays until it has
    link(a).will_error = PeerError("no will at all")
    await home.sweep(1)
    assert home.rows == {}


# -- those whose broker is gone


async def test_a_broker_that_never_returns_loses_its_sessions_after_a_while() -> None:
    home = Home()
    a, b = home.broker("a"), home.broker("b")
    first = await home.open(a, will=WILL)
    gone_us = home.clock.time_us()
    home.lose(a)
    await home.sweep(ORPHANED_S - 1)
    assert (home.row().owner, link(b).wills) == ("a", [])
    await home.sweep(1)
    assert (home.row().owner, home.row().expires_us, link(b).wills) == ("", gone_us + HOUR * US, [WILL])
    with pytest.raises(StaleEpochError):  # it was only cut off, and comes back
        await home.save(first.generation, b"late")
    await home.sweep(HOUR)
    assert home.rows == {}


async def test_a_link_that_comes_back_has_lost_nothing() -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a, will=WILL)
    home.lose(a)
    await home.sweep(ORPHANED_S - 1)
    again = home.broker("a")
    await home.sweep(ORPHANED_S * 2)
    assert (home.row().owner, link(again).wills) == ("a", [])
    await home.save(first.generation, b"further")


async def test_a_broker_that_comes_back_anew_has_no_sessions() -> None:
    home = Home()
    await home.open(home.broker("a"), will=WILL, expiry_s=0)
    again = home.broker("a", incarnation=2)
    await home.sweep()
    assert (home.rows, link(again).wills) == ({}, [WILL])


async def test_sessions_of_brokers_that_a_restarted_coordinator_never_sees() -> None:
    home = Home()
    await home.open(home.broker("a"), will=WILL)
    home.start()
    b = home.broker("b")
    await home.sweep(ORPHANED_S - 1)
    assert home.row().owner == "a"
    await home.sweep(1)
    assert (home.row().owner, link(b).wills) == ("", [WILL])


async def test_unwritten_sessions_of_a_broker_that_died_are_forgotten() -> None:
    home = Home()
    await home.open(home.broker("a"), expiry_s=0)
    home.broker("a", incarnation=2)
    await home.sweep()
    assert home.get() is None


@pytest.mark.parametrize(
    ("below", "exceptions", "expected"),
    [(2, {}, 50), (1, {}, 9), (2, {1: {GROUP: 30}}, 30), (2, {1: None}, 9), (2, {3: {GROUP: 10}}, 50)],
)
async def test_a_session_goes_on_from_what_its_broker_told_of_all(
    below: int, exceptions: dict[int, Any], expected: int
) -> None:
    home = Home()
    a = home.broker("a")
    first = await home.open(a)
    await home.save(first.generation, place(9))
    home.sessions.stand(a, below, {GROUP: 40, 7: 3}, {})
    home.sessions.stand(a, below, {GROUP: 50}, packed_exceptions(exceptions))
    home.lose(a)
    opened = await home.open(home.broker("b"))
    assert read(opened.filters, opened.place).cursor == {GROUP: expected}


async def test_a_session_that_comes_and_goes_is_read_from_the_store_once() -> None:
    home = Home()
    first = await home.open(home.broker("a"))
    await home.leave(first.generation, place(9))
    asked: list[str] = []
    read_row = home.table.session

    def counted(group: int, client_id: str) -> SessionSaved | None:
        asked.append(client_id)
        return read_row(group, client_id)

    home.table.session = counted  # type: ignore[method-assign]  # a store that counts
    home.start()
    a = home.broker("a")
    for connection in range(1, 4):
        opened = await home.open(a, connection)
        assert opened.place == place(9)
        await home.leave(opened.generation, place(9))
    assert len(asked) == 1


async def test_what_could_not_be_stored_is_not_remembered() -> None:
    home = Home()
    a = home.broker("a")
    opened = await home.open(a)
    before = home.get()
    home.holds = True
    saving = asyncio.ensure_future(home.save(opened.generation, place(9)))
    await asyncio.sleep(0)
    home.commit(StoreError("no room"))
    with pytest.raises(StoreError):
        await saving
    assert home.get() == before
