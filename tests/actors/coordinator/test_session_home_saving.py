"""The home of sessions: what of them is written, read again, and told to owners who have lost them."""

from __future__ import annotations

import pytest

from lexicast.cluster.errors import StaleEpochError
from lexicast.cluster.protocol.sessions import SessionHeld
from lexicast.cluster.records import SessionMoved, SessionSaved

from ...support.harness import eventually
from ...support.session_home import (
    CLIENT,
    GROUP,
    WAITS,
    WILL,
    Home,
    link,
)


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
