"""Logins without a broker: what is verified where, what is remembered, what waits, and what a user who does not exist
costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from lexicast.actors.mqtt.codec.packets import V5, Connect
from lexicast.actors.mqtt.login.hashing import SHARE, Hashing
from lexicast.actors.mqtt.login.logins import Login, Logins
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LimitError
from lexicast.cluster.security.back_off import PAIR_FREE, PAIR_MOST_S
from lexicast.cluster.security.likenesses import likenesses
from lexicast.cluster.security.passwords import PBKDF2, SHA512, PasswordHash, Passwords, hash_password

FAST = hash_password(b"fast", bytes(12), SHA512).text()
SLOW = hash_password(b"slow", bytes(12), PBKDF2).text()
OTHER = hash_password(b"other", bytes(12), PBKDF2).text()
LET_IN, BAD, UNAVAILABLE, BUSY, RATE = 0x00, 0x86, 0x88, 0x89, 0x9F


class Transport:
    """Its ends."""

    def __init__(self, peer: str = "192.0.2.7") -> None:
        self._ends = {"peername": (peer, 1), "sockname": ("192.0.2.1", 1883)}

    def get_extra_info(self, name: str) -> Any:
        return self._ends.get(name)


class Door:
    """Logins at a time that the test moves."""

    def __init__(self, users: Passwords | None, **knobs: Any) -> None:
        self.now_s = 100.0
        self.logins = Logins(Config().replaced(security__password_file="p", **knobs), lambda: self.now_s)
        if users is not None:
            self.set(users)

    def set(self, users: Passwords) -> None:
        self.logins.update(users, likenesses(users))

    def check(
        self, user: str | None, password: bytes | None, peer: str = "192.0.2.7", gone: bool = False
    ) -> Login | Awaitable[Login]:
        transport: Any = Transport(peer)
        connect = Connect(V5, "c", True, 0, None, user, password)
        return self.logins.check(connect, transport, lambda: gone)

    async def code(self, user: str | None, password: bytes | None, peer: str = "192.0.2.7") -> int:
        found = self.check(user, password, peer)
        return (found if isinstance(found, Login) else await found).reason_code

    async def waits(self, user: str, password: bytes) -> int:
        """What comes of a login that is not answered at once."""
        found = self.check(user, password)
        assert not isinstance(found, Login)
        return (await found).reason_code


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door({"ada": FAST, "bob": SLOW})
    yield made
    made.logins.close()


async def test_fast_hashes_are_verified_at_once_and_slow_ones_elsewhere(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    verify = PasswordHash.verify

    def noted(self: PasswordHash, password: bytes) -> bool:
        threads.append(threading.get_ident())
        return verify(self, password)

    monkeypatch.setattr(PasswordHash, "verify", noted)
    assert await door.code("ada", b"fast") == LET_IN
    assert threads == [threading.get_ident()]
    assert await door.code("bob", b"slow") == LET_IN
    assert len(threads) == 2
    assert threads[1] != threading.get_ident()


async def test_what_was_right_is_remembered_until_the_row_changes(door: Door) -> None:
    assert await door.waits("bob", b"slow") == LET_IN
    again = door.check("bob", b"slow")
    assert isinstance(again, Login)
    assert again == Login(LET_IN, "bob", "password", SLOW)
    assert await door.code("bob", b"wrong") == BAD
    assert isinstance(door.check("bob", b"slow"), Login)  # nobody else's mistakes forget it
    door.set({"bob": OTHER})
    assert await door.waits("bob", b"slow") == BAD
    assert await door.waits("bob", b"other") == LET_IN


async def test_who_is_verified_by_a_row_that_has_changed_meanwhile_is_not_held(door: Door) -> None:
    waits = door.check("bob", b"slow")
    door.set({"bob": OTHER})
    assert not isinstance(waits, Login)
    login = await waits
    assert not door.logins.holds(login)
    assert await door.waits("bob", b"slow") == BAD  # nor is it remembered


async def test_holds() -> None:
    door = Door({"ada": FAST})
    ada = Login(LET_IN, "ada", "password", FAST)
    assert door.logins.holds(ada)
    assert door.logins.holds(Login(LET_IN))
    assert door.logins.holds(Login(LET_IN, "a device", "certificate"))
    door.set({"ada": SLOW})
    assert not door.logins.holds(ada)
    door.set({})
    assert not door.logins.holds(ada)
    assert not door.logins.knows("ada")


async def test_nobody_is_let_in_before_the_users_are_known() -> None:
    door = Door(None, mqtt__allow_anonymous="always")
    assert await door.code("ada", b"fast") == UNAVAILABLE
    assert await door.code(None, None) == UNAVAILABLE
    door.set({"ada": FAST})
    assert await door.code("ada", b"fast") == LET_IN
    assert await door.code(None, None) == LET_IN


async def test_an_empty_file_has_no_users() -> None:
    door = Door({}, mqtt__allow_anonymous="always")
    assert await door.code("ada", b"fast") == BAD
    assert await door.code("", b"") == BAD
    assert await door.code(None, b"fast") == BAD


async def test_a_user_who_does_not_exist_costs_what_others_do(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[PasswordHash] = []

    def verify(self: PasswordHash, password: bytes) -> bool:
        verified.append(self)
        return False

    monkeypatch.setattr(PasswordHash, "verify", verify)
    for at in range(60):
        assert await door.code(f"nobody {at}", b"x", f"192.0.2.{at}") == BAD
    assert {(each.kind, each.iterations) for each in verified} == {(SHA512, 0), (PBKDF2, 210_000)}
    slow = sum([each.is_slow for each in verified])
    assert 10 <= slow <= 50
    kind_of = {each.salt: each.kind for each in verified}
    verified.clear()
    for at in range(60):
        await door.code(f"nobody {at}", b"y", f"198.51.100.{at}")
    assert {each.salt: each.kind for each in verified} == kind_of  # asked again, it takes as long again


async def test_failures_hold_up_their_pair_and_nothing_is_verified_for_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(PAIR_FREE + 1):
        assert await door.code("ada", b"wrong") == BAD
    monkeypatch.setattr(PasswordHash, "verify", lambda self, password: pytest.fail("it was asked"))
    assert await door.code("ada", b"fast") == RATE
    monkeypatch.undo()
    door.now_s += PAIR_MOST_S
    assert await door.code("ada", b"fast") == LET_IN


async def test_who_is_known_already_is_never_held_up(door: Door) -> None:
    assert await door.code("bob", b"slow") == LET_IN
    for _ in range(PAIR_FREE + 1):
        await door.code("bob", b"wrong")
    assert await door.code("bob", b"wrong") == RATE
    assert await door.code("bob", b"slow") == LET_IN


async def test_places_are_bounded_in_sum_and_for_each_address() -> None:
    hashing = Hashing(1, 4 * SHARE)
    release = threading.Event()

    class Waits(PasswordHash):
        def verify(self, password: bytes) -> bool:
            return release.wait(10)

    of = Waits(SHA512, b"", b"")
    waiting = [hashing.verify(of, b"", f"2001:db8::{at}", lambda: True) for at in range(4)]
    with pytest.raises(LimitError):
        hashing.verify(of, b"", "2001:db8::9", lambda: True)
    waiting += [hashing.verify(of, b"", "a", lambda: True) for _ in range(4)]
    with pytest.raises(LimitError):
        hashing.verify(of, b"", "a", lambda: True)
    for address in ("b", "c"):
        waiting += [hashing.verify(of, b"", address, lambda: True) for _ in range(4)]
    with pytest.raises(LimitError):
        hashing.verify(of, b"", "e", lambda: True)
    assert hashing.waiting == 4 * SHARE
    release.set()
    assert all(await asyncio.gather(*waiting))
    assert hashing.waiting == 0
    assert await hashing.verify(of, b"", "a", lambda: True)
    assert not await hashing.verify(of, b"", "a", lambda: False)  # its client has left
    hashing.close()


async def test_a_full_queue_is_told_as_busy() -> None:
    door = Door({"bob": SLOW}, security__hashing_waiting_max=1)
    first = door.check("bob", b"slow")
    assert await door.code("bob", b"slow", "198.51.100.1") == BUSY
    assert not isinstance(first, Login)
    assert (await first).reason_code == LET_IN
    door.logins.close()


async def test_counts_and_the_audit_trail(caplog: pytest.LogCaptureFixture) -> None:
    door = Door({"ada": FAST})
    with caplog.at_level("WARNING", logger="lexicast.audit"):
        for at in range(100):
            await door.code(f"nobody {at}", b"x", f"192.0.2.{at}")
    lines = [record.getMessage() for record in caplog.records if record.name == "lexicast.audit"]
    assert len(lines) == 20
    caplog.clear()
    door.now_s += 1.0
    with caplog.at_level("WARNING", logger="lexicast.audit"):
        await door.code("ada", b"wrong")
    assert [record.getMessage().partition(" address")[2] for record in caplog.records] == ['="192.0.2.7" left_out=80']
    assert door.logins.status()["refused"] == {"no such user": 100, "wrong password": 1}
