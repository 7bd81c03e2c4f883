"""The home of sessions looks after those whom nobody owns: they end, their wills go out, their brokers are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lexicast.actors.coordinator.session_owners import ORPHANED_S
from lexicast.cluster.errors import PeerError, StaleEpochError, StoreError, UnavailableError
from lexicast.cluster.protocol.session_floor import packed_exceptions
from lexicast.cluster.protocol.sessions import SessionGrant
from lexicast.cluster.records import SessionSaved

from ...support.session_home import (
    GROUP,
    HOUR,
    US,
    WAITS,
    WILL,
    Home,
    link,
    place,
    read,
)


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
