"""The home of sessions: one owner at a time, by compare-and-set; what an older generation wants is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lexicast.actors.coordinator import session_home
from lexicast.cluster.errors import StaleEpochError, StoreError, UnavailableError, UsageError
from lexicast.cluster.protocol.sessions import SessionClaim, SessionGrant, SessionHeld

from ...support.harness import eventually
from ...support.session_home import (
    CLIENT,
    GROUP,
    HOUR,
    NOBODY,
    NOTHING_YET,
    US,
    WAITS,
    WILL,
    Home,
    link,
    place,
    read,
)


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


async def test_the_sessions_of_a_broker_that_is_gone_are_given_without_a_task_each() -> None:
    home = Home()
    gone, other = home.broker("broker-0"), home.broker("broker-1")
    granted = await home.open(gone)
    await home.save(granted.generation, place(4))
    home.sessions.stand(gone, 9, {GROUP: 7}, {})
    claim = SessionClaim(False, b"new", 1, HOUR, b"", b"", b"begin", "")
    home.lose(gone)
    given = home.sessions.open(other, GROUP, CLIENT, claim)
    assert isinstance(given, asyncio.Future)
    found = await given
    assert found.present
    assert read(found.filters, found.place).cursor == {GROUP: 7}
    assert home.row().owner == "broker-1"
    # Its owner lives now, and is asked.
    asked = home.sessions.open(home.broker("broker-2"), GROUP, CLIENT, claim)
    assert not isinstance(asked, asyncio.Future)
    await asked
    assert [what for what, *_ in link(other).asked] == ["session_yield"]


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
