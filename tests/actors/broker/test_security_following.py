"""A broker follows the files of security: it takes newer ones, keeps what it has where they are lost or cannot be read,
and gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lexicast.actors.broker.security import following as security_following
from lexicast.actors.broker.security.following import SecurityFollowing
from lexicast.cluster.config.tables import SecurityConfig
from lexicast.cluster.errors import ConfigError, UnavailableError
from lexicast.cluster.security.files import NOTHING_KNOWN, SecurityContents, SecurityFiles
from lexicast.cluster.security.passwords import SHA512, hash_password

from ...support.harness import eventually

ROW = hash_password(b"x", bytes(12), SHA512).text()
USERS, OTHERS = f"ada:{ROW}\n".encode(), f"bob:{ROW}\n".encode()
ONE, TWO = SecurityFiles(1, USERS, None), SecurityFiles(2, OTHERS, None)


class Coordination:
    """What it has, what it was given back; away when it is to be."""

    def __init__(self, files: SecurityFiles = NOTHING_KNOWN) -> None:
        self.files = files
        self.away = False
        self.restored: list[SecurityFiles] = []

    async def security(self) -> SecurityFiles:
        if self.away:
            raise UnavailableError("away")
        return self.files

    async def restore_security(self, files: SecurityFiles) -> bool:
        if self.away:
            raise UnavailableError("away")
        self.restored.append(files)
        return True


class Follower:
    """A SecurityFollowing and what it had taken."""

    def __init__(self, coordination: Coordination, **knobs: Any) -> None:
        calls: Any = coordination
        self.following = SecurityFollowing(SecurityConfig(**knobs), calls, self._take)
        self.taken: list[SecurityFiles] = []
        self.wrong = ""
        self.task: asyncio.Task[None] | None = None

    def _take(self, files: SecurityFiles, contents: SecurityContents) -> None:
        if self.wrong:
            raise ConfigError(self.wrong)
        assert (contents.passwords is None) == (files.passwords is None)
        self.taken.append(files)

    async def start(self) -> None:
        await self.following.ready()
        self.task = asyncio.create_task(self.following.run())

    def tell(self, files: SecurityFiles) -> None:
        self.following.follow(files.version)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_following, "READY_S", 0.3)
    monkeypatch.setattr(security_following, "RETRY_S", 0.01)


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    made = Follower(Coordination(ONE), password_file="p")
    await made.start()
    yield made
    assert made.task is not None
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


def coordination_of(follower: Follower) -> Coordination:
    found: Any = follower.following._coordination
    assert isinstance(found, Coordination)
    return found


async def test_it_is_ready_when_it_has_what_its_configuration_names() -> None:
    coordination = Coordination()
    made = Follower(coordination, password_file="p")
    waits = asyncio.create_task(made.following.ready())
    await asyncio.sleep(0.05)
    assert not waits.done()
    coordination.files = ONE
    await waits
    assert made.taken == [ONE]


async def test_what_is_not_known_is_never_taken_for_absent() -> None:
    with pytest.raises(UnavailableError, match="does not know the password file and the acl file"):
        await Follower(Coordination(), password_file="p", acl_file="a").following.ready()
    with pytest.raises(UnavailableError, match="there is no acl file among them"):
        await Follower(Coordination(ONE), password_file="p", acl_file="a").following.ready()


async def test_without_files_nothing_is_waited_for() -> None:
    coordination = Coordination()
    coordination.away = True
    made = Follower(coordination)
    await made.following.ready()
    assert made.taken == []


async def test_a_cluster_without_files_gives_nothing_back_and_its_broker_goes_on() -> None:
    """`lexicast up` gives a version also where there are no files. With the registry it is lost."""
    coordination = Coordination(SecurityFiles(7))
    made = Follower(coordination)
    made.tell(coordination.files)
    await made.start()
    assert made.task is not None
    coordination.files = NOTHING_KNOWN
    made.tell(NOTHING_KNOWN)
    await asyncio.sleep(0.05)  # the event loop turns
    assert coordination.restored == []
    coordination.files = SecurityFiles(8)
    made.tell(coordination.files)
    await eventually(lambda: made.taken == [SecurityFiles(7), SecurityFiles(8)])
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_files_that_nobody_named_and_that_cannot_be_taken_are_waited_for_so_long_and_no_longer() -> None:
    coordination = Coordination(SecurityFiles(2, b"ada:nonsense"))
    made = Follower(coordination)
    made.tell(coordination.files)
    with pytest.raises(UnavailableError, match=r"the files of security \(the password file, line 1"):
        await made.following.ready()


async def test_newer_files_are_taken_and_older_ones_are_not(follower: Follower) -> None:
    coordination_of(follower).files = TWO
    follower.tell(TWO)
    await eventually(lambda: follower.taken == [ONE, TWO])
    assert follower.following.status() == {"version": 2, "error": ""}
    coordination_of(follower).files = ONE
    follower.tell(ONE)
    await eventually(lambda: coordination_of(follower).restored == [TWO])
    assert follower.following.files == TWO


async def test_lost_files_are_given_back(follower: Follower) -> None:
    coordination = coordination_of(follower)
    coordination.files, coordination.away = NOTHING_KNOWN, True
    follower.tell(NOTHING_KNOWN)
    await asyncio.sleep(0.05)
    assert coordination.restored == []
    coordination.away = False
    await eventually(lambda: coordination.restored == [ONE])
    assert follower.following.files == ONE


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (SecurityFiles(2, b"ada:nonsense", None), "the password file, line 1"),
        (SecurityFiles(2, None, b"topic read #"), "there is no password file"),
    ],
)
async def test_files_that_cannot_be_taken_change_nothing(follower: Follower, files: SecurityFiles, says: str) -> None:
    coordination_of(follower).files = files
    follower.tell(files)
    await eventually(lambda: follower.following.status()["error"] != "")
    assert says in follower.following.status()["error"]
    assert follower.following.files == ONE
    assert coordination_of(follower).restored == []
    coordination_of(follower).files = SecurityFiles(3, OTHERS, None)
    follower.tell(SecurityFiles(3, OTHERS, None))
    await eventually(lambda: follower.following.status() == {"version": 3, "error": ""})


async def test_rules_that_the_broker_does_not_understand_change_nothing(follower: Follower) -> None:
    follower.wrong = "line 3: unknown"
    coordination_of(follower).files = TWO
    follower.tell(TWO)
    await eventually(lambda: follower.following.status()["error"] == "line 3: unknown")
    assert follower.following.files == ONE
