"""The coordination server without Ray: durable, founded once, never empty when a store knows the cluster."""

from __future__ import annotations

import asyncio
import stat
from binascii import crc32
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest

from lexicast.actors.coordination.actor import CoordinationActor
from lexicast.actors.coordination.server import CoordinationServer, LocalCoordination
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import (
    StoreError,
    StoreFormatError,
    StoreFullError,
    StorePoisonedError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import BROKER, COORDINATOR, Coordination, CoordinatorReport, Member
from lexicast.cluster.recovery import GroupReport
from lexicast.storage.registry import FILE, MAP_BYTES, Registry

BOTH = ("coordinator-0", "coordinator-1")


@contextmanager
def server(folder: Path, coordinators: tuple[str, ...] = BOTH[:1], **options: Any) -> Iterator[CoordinationServer]:
    made = CoordinationServer(Registry(folder), options.pop("groups", 4), coordinators, **options)
    try:
        yield made
    finally:
        made.close()


def broker(name: str = "broker-0") -> Member:
    return Member(name, 0, ("unix:/run/b", "tcp:127.0.0.1:1"), "node", 42)


def told(name: str, led: Mapping[int, int], cluster_id: str) -> CoordinatorReport:
    """The report of a coordinator that has led these groups alone, under these epochs."""
    reports = {group: GroupReport(epoch, epoch, 10, True, epoch, (name,)) for group, epoch in led.items()}
    return CoordinatorReport(cluster_id, 4, reports)


def epochs(states: Mapping[int, GroupState]) -> dict[int, int]:
    return {group: state.epoch for group, state in states.items()}


# -- founding


async def test_a_new_cluster_gets_an_id_a_key_and_first_epochs_and_keeps_them(tmp_path: Path) -> None:
    with server(tmp_path) as first:
        assert (await first.cluster(wait=False)).cluster_id == ""
        assert epochs(await first.open_groups("coordinator-0", {}, None)) == {0: 1, 1: 1, 2: 1, 3: 1}
        info = await first.cluster()
    assert len(info.cluster_id) == 32
    assert len(info.key) == 32
    assert info.key.hex() not in repr(info)
    with server(tmp_path, groups=9, coordinators=("other",)) as again:
        assert await again.cluster() == info
        assert epochs(await again.open_groups("coordinator-0", {0: 5}, info.cluster_id)) == {0: 6, 1: 2, 2: 2, 3: 2}


async def test_a_new_server_waits_for_every_coordinator(tmp_path: Path) -> None:
    with server(tmp_path, BOTH) as new:
        first = asyncio.create_task(new.open_groups(BOTH[0], {}, None))
        waiting = asyncio.create_task(new.cluster())
        await asyncio.sleep(0)
        assert not first.done()
        assert epochs(await new.open_groups(BOTH[1], {}, None)) == {1: 1, 3: 1}
        assert epochs(await first) == {0: 1, 2: 1}
        assert (await waiting).cluster_id


async def test_a_coordinator_that_does_not_come_is_named(tmp_path: Path) -> None:
    with server(tmp_path, BOTH, found_wait_s=0.01) as new, pytest.raises(UnavailableError, match="coordinator-1 to"):
        await new.open_groups(BOTH[0], {}, None)


# -- opening


async def test_another_clusters_store_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as here:
        await here.open_groups("coordinator-0", {}, None)
        with pytest.raises(StoreFormatError, match="belongs to cluster"):
            await here.open_groups("coordinator-0", {}, "f" * 32)


async def test_a_coordinator_that_served_and_comes_back_empty_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as here:
        await here.open_groups("coordinator-0", {}, None)
        await here.open_groups("coordinator-0", {}, None)  # it died before it served: nothing is lost
        await here.register(COORDINATOR, Member("coordinator-0", 0, (), "node", 1, (0, 1)))
        with pytest.raises(StoreFormatError, match="is empty"):
            await here.open_groups("coordinator-0", {}, None)


async def test_a_group_beyond_the_clusters_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as here:
        await here.open_groups("coordinator-0", {}, None)
        with pytest.raises(StoreFormatError, match="topic group 7"):
            await here.open_groups("coordinator-0", {7: 1}, (await here.cluster()).cluster_id)


async def test_a_stranger_opens_nothing(tmp_path: Path) -> None:
    with server(tmp_path) as here, pytest.raises(UsageError, match="no coordinator of this cluster"):
        await here.open_groups("coordinator-9", {}, None)


async def test_a_change_of_group_is_durable_and_a_stale_one_refused(tmp_path: Path) -> None:
    first, pair = GroupState(0, BOTH[0], BOTH[:1]), GroupState(0, BOTH[0], BOTH)
    with LocalCoordination(tmp_path, coordinators=BOTH) as here:
        assert await here.change_group(0, first, pair)
        assert not await here.change_group(0, first, GroupState(1, BOTH[0], BOTH[:1]))
    with server(tmp_path) as again:
        assert await again.change_group(0, pair, GroupState(1, BOTH[1], BOTH[1:]))
        assert again.status()["group_states"][0] == [1, BOTH[1], [BOTH[1]]]


async def test_many_changes_at_once_say_what_holds_now(tmp_path: Path) -> None:
    first, pair = GroupState(0, BOTH[0], BOTH[:1]), GroupState(0, BOTH[0], BOTH)
    wanted = {
        0: (first, pair),
        1: (first, pair),  # stale: another one leads it
        2: (first, GroupState(0, BOTH[1], BOTH)),  # a new leader in the old epoch, who was not in sync
    }
    held = {0: pair, 1: GroupState(0, BOTH[1], BOTH[1:]), 2: first}
    with LocalCoordination(tmp_path, coordinators=BOTH) as here:
        before = await here.members(-1, 0)
        assert await here.change_groups(wanted) == held
        after = await here.members(before.version, 0)
        assert after.version == before.version + 1
        assert {group: after.groups[group] for group in held} == held
    with server(tmp_path) as again:
        assert (await again.members(-1, 0)).groups == after.groups


# -- who is lost


async def shared(here: CoordinationServer, groups: int) -> dict[str, int]:
    """Both coordinators serve, and both are in sync everywhere. Returns their incarnations."""
    incarnations = {name: await here.register(COORDINATOR, broker(name)) for name in BOTH}
    states = (await here.members(-1, 0)).groups
    await here.change_groups({g: (states[g], states[g]._replace(in_sync=BOTH)) for g in range(groups)})
    return incarnations


async def test_groups_of_a_lost_coordinator_are_led_by_another_that_is_in_sync(tmp_path: Path) -> None:
    with LocalCoordination(tmp_path, 4, BOTH) as here:
        incarnations = await shared(here, groups=2)
        version = (await here.members(-1, 0)).version
        waiting = asyncio.create_task(here.members(version, 5.0))
        await asyncio.sleep(0)
        assert here.lost(COORDINATOR, BOTH[0], incarnations[BOTH[0]]) == {0: GroupState(1, BOTH[1], BOTH[1:])}
        told = await waiting
        assert (
            told.groups
            == {
                0: GroupState(1, BOTH[1], BOTH[1:]),
                1: GroupState(0, BOTH[1], BOTH),  # the leader drops who is lost itself
                2: GroupState(0, BOTH[0], BOTH[:1]),  # nobody else has it
                3: GroupState(0, BOTH[1], BOTH[1:]),
            }
        )
        assert here.status()["lost"] == [BOTH[0]]
        opened = await here.open_groups(BOTH[0], {0: 1, 2: 1}, (await here.cluster()).cluster_id)
        assert opened == {2: GroupState(2, BOTH[0], BOTH[:1])}  # what it leads by now, and no more
    with server(tmp_path) as again:
        assert (await again.members(-1, 0)).groups[0].leader == BOTH[1]


async def test_a_suspicion_that_is_out_of_date_moves_nothing(tmp_path: Path) -> None:
    with LocalCoordination(tmp_path, 2, BOTH) as here:
        incarnations = await shared(here, groups=2)
        await here.register(COORDINATOR, broker(BOTH[0]))  # it has started again
        assert here.lost(COORDINATOR, BOTH[0], incarnations[BOTH[0]]) == {}
        assert here.lost(BROKER, BOTH[0], 1) == {}
        assert here.status()["lost"] == []


async def test_what_could_not_be_made_durable_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCoordination(tmp_path, 2, BOTH) as here:
        incarnations = await shared(here, groups=2)
        before = await here.members(-1, 0)
        dropped = before.groups[1]._replace(in_sync=BOTH[1:])

        def full(changes: Mapping[str, Any]) -> None:
            raise StoreFullError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(here._registry, "commit", full)
            with pytest.raises(StoreFullError):
                here.lost(COORDINATOR, BOTH[0], incarnations[BOTH[0]])
            with pytest.raises(StoreFullError):
                await here.change_group(1, before.groups[1], dropped)
            with pytest.raises(StoreFullError):
                await here.open_groups(BOTH[1], {1: 7}, (await here.cluster()).cluster_id)
            assert await here.members(-1, 0) == before
        assert here.lost(COORDINATOR, BOTH[0], incarnations[BOTH[0]]) == {0: GroupState(1, BOTH[1], BOTH[1:])}
        assert await here.change_group(1, before.groups[1], dropped)
        told = (await here.members(-1, 0)).groups
    with server(tmp_path) as again:
        assert (await again.members(-1, 0)).groups == told


async def test_who_comes_back_succeeds_those_that_were_lost_meanwhile(tmp_path: Path) -> None:
    with LocalCoordination(tmp_path, 2, BOTH) as here:
        incarnations = await shared(here, groups=2)
        here.lost(COORDINATOR, BOTH[0], incarnations[BOTH[0]])
        assert here.lost(COORDINATOR, BOTH[1], incarnations[BOTH[1]]) == {}  # nobody is left
        here.found(COORDINATOR, BOTH[0], incarnations[BOTH[0]])
        states = (await here.members(-1, 0)).groups
        assert states[1] == GroupState(1, BOTH[0], BOTH[:1])
        assert states[0] == GroupState(1, BOTH[1], BOTH[1:])  # it was dropped there, and may lack what came after


# -- membership


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCoordination]:
    with LocalCoordination(tmp_path) as coordination:
        yield coordination


async def test_registering_bumps_incarnation_and_version(local: LocalCoordination) -> None:
    coordination: Coordination = local
    before = await coordination.members(-1, 0)
    assert [await coordination.register(BROKER, broker()) for _ in range(3)] == [1, 2, 3]
    after = await coordination.members(before.version, 60)
    assert after.version > before.version
    assert after.brokers == {"broker-0": Member("broker-0", 3, ("unix:/run/b", "tcp:127.0.0.1:1"), "node", 42)}
    assert not after.coordinators
    assert not after.samplers


async def test_a_poll_waits_for_the_next_change(local: LocalCoordination) -> None:
    version = (await local.members(-1, 0)).version
    polls = [asyncio.create_task(local.members(version, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(poll.done() for poll in polls)
    await local.register(BROKER, broker())
    assert {(await poll).version for poll in polls} == {version + 1}


async def test_a_poll_without_a_change_ends_with_the_same_version(local: LocalCoordination) -> None:
    version = (await local.members(-1, 0)).version
    assert (await local.members(version, 0.01)).version == version


async def test_who_leaves_is_gone_but_its_incarnation_is_not(local: LocalCoordination) -> None:
    await local.register(BROKER, broker())
    await local.leave(BROKER, "broker-0")
    await local.leave(BROKER, "never-there")
    assert not (await local.members(-1, 0)).brokers
    assert await local.register(BROKER, broker()) == 2


async def test_a_restart_keeps_members_and_a_new_run_does_not(tmp_path: Path) -> None:
    versions = []
    for run in ("one", "one", "two"):
        with LocalCoordination(tmp_path, run=run) as here:
            members = await here.members(-1, 0)
            versions.append(members.version)
            assert list(members.brokers) == (["broker-0"] if len(versions) == 2 else [])
            assert await here.register(BROKER, broker()) == len(versions)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201])
async def test_a_name_that_is_none_is_refused(local: LocalCoordination, name: str) -> None:
    with pytest.raises(UsageError):
        await local.register(BROKER, broker(name))
    with pytest.raises(UsageError, match="kind"):
        await local.register("janitor", broker())


# -- the registry below


def test_the_registry_is_private_and_used_by_one_server(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    try:
        assert stat.S_IMODE((tmp_path / "r" / FILE).stat().st_mode) == 0o600
        with pytest.raises(StoreError, match="in use"):
            Registry(tmp_path / "r")
    finally:
        registry.close()
    Registry(tmp_path / "r").close()
    with pytest.raises(StoreError, match="closed"):
        registry.get("x")


def test_commits_are_whole_and_come_back(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.commit({"a/1": [1, b"x"], "a/2": "two", "b": {1: None}})
    with pytest.raises(UsageError):
        registry.commit({"a/1": "lost", "k" * 600: 1})
    registry.commit({"a/2": None})
    registry.close()
    again = Registry(tmp_path)
    assert again.items("a/") == {"a/1": [1, b"x"]}
    assert again.get("b") == {1: None}
    assert again.get("c") is None
    again.close()


def _damage(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _flip(folder: Path, row: bytes) -> None:
    """Flip a bit of a row wherever it lies, older copies in pages that nobody looks at any more included."""
    content = (folder / FILE).read_bytes()[: 1 << 20]
    at = content.find(row)
    assert at >= 0
    while at >= 0:
        _damage(folder / FILE, at, bytes([content[at] ^ 1]))
        at = content.find(row, at + 1)


def test_a_damaged_row_is_passed_over_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(tmp_path)
    registry.commit({"hay/1": b"straw", "hay/needle": b"in the haystack", "hay/zzz": 3})
    registry.close()
    _flip(tmp_path, b"in the haystack")
    registry = Registry(tmp_path)
    assert registry.get("hay/needle") is None
    assert registry.items("hay/") == {"hay/1": b"straw", "hay/zzz": 3}
    assert [registry.is_damaged(key) for key in ("hay/needle", "hay/1", "hay/none")] == [True, False, False]
    assert registry.damage.counts == {"registry": 1}
    assert "hay/needle" in caplog.text
    registry.commit({"hay/needle": b"found"})
    assert registry.get("hay/needle") == b"found"
    assert not registry.is_damaged("hay/needle")
    registry.close()


def test_a_registry_whose_format_is_damaged_opens(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.commit({"key": "value"})
    registry.close()
    body = b"\x01"
    _flip(tmp_path, crc32(body).to_bytes(4, "big") + body)
    for _ in range(2):  # it was written anew
        registry = Registry(tmp_path)
        assert registry.get("key") == "value"
        registry.close()


def _row(value: object) -> bytes:
    body: bytes = msgpack.packb(value)
    return crc32(body).to_bytes(4, "big") + body


async def test_a_server_whose_rows_are_damaged_starts_and_hands_out_nothing_twice(tmp_path: Path) -> None:
    with server(tmp_path, BOTH) as first:
        await asyncio.gather(*[first.open_groups(name, {}, None) for name in BOTH])
        cluster_id = first.status()["cluster_id"]
        opened = epochs(await first.open_groups(BOTH[0], {}, cluster_id))
        for _ in range(3):
            incarnation = await first.register(COORDINATOR, broker(BOTH[0]))
    _flip(tmp_path, _row([opened[0], BOTH[0], [BOTH[0]]]))
    _flip(tmp_path, _row(incarnation))
    with server(tmp_path, BOTH) as again:
        status = again.status()
        assert status["damage"]["counts"]["registry"] >= 2
        assert sorted(status["group_states"]) == [0, 1, 2, 3]
        with pytest.raises(StoreFormatError, match="has served this cluster before"):
            await again.open_groups(BOTH[0], {}, None)
        assert status["unknown"] == {0: [], 2: []}  # whose rows are the same
        assert not await again.report(BOTH[0], told(BOTH[0], opened, cluster_id))  # it alone has led them
        assert not await again.report(BOTH[1], told(BOTH[1], {1: 1, 3: 1}, cluster_id))
        anew = await again.open_groups(BOTH[0], opened, cluster_id)
        assert all(anew[group].epoch > epoch for group, epoch in opened.items())
        assert await again.register(COORDINATOR, broker(BOTH[0])) > incarnation


async def test_a_server_that_has_lost_the_cluster_asks_the_stores(tmp_path: Path) -> None:
    with server(tmp_path) as first:
        opened = epochs(await first.open_groups("coordinator-0", {}, None))
        info = await first.cluster()
    names = {"id": info.cluster_id, "key": info.key, "groups": 4, "coordinators": list(BOTH[:1])}
    _flip(tmp_path, _row(names))
    with server(tmp_path) as again:
        assert not await again.report("coordinator-0", told("coordinator-0", opened, info.cluster_id))
        anew = await again.open_groups("coordinator-0", opened, info.cluster_id)
        assert (await again.cluster()).cluster_id == info.cluster_id
        assert all(anew[group].epoch > epoch for group, epoch in opened.items())


@pytest.mark.parametrize("size", [100, 12_288, MAP_BYTES // 2])
def test_a_file_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    registry = Registry(tmp_path)
    registry.commit({"key": "value"})
    registry.close()
    with (tmp_path / FILE).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(StoreFormatError, match=r"registry\.mdb"):
        Registry(tmp_path)


def test_a_newer_format_and_a_strange_file_are_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "new")
    registry.commit({"format": 99})
    registry.close()
    with pytest.raises(StoreFormatError, match="format 99"):
        Registry(tmp_path / "new")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / FILE).write_bytes(b"\1" * 20_000)
    with pytest.raises(StoreFormatError, match="cannot be opened"):
        Registry(tmp_path / "strange")


def test_an_io_error_poisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(tmp_path)

    class Broken:
        def begin(self, write: bool = False) -> None:
            raise lmdb.DiskError("no space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(registry, "_environment", Broken())
    for _ in range(2):
        with pytest.raises(StorePoisonedError, match="no space left"):
            registry.commit({"a": 1})
    with pytest.raises(StorePoisonedError):
        registry.get("a")
    registry.close()


# -- the actor, as a plain object


async def test_an_actor_that_cannot_serve_says_why_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "coordination").mkdir()
    (tmp_path / "coordination" / FILE).write_bytes(b"\1" * 20_000)
    config = Config().replaced(node__data_dir=str(tmp_path)).as_dict()
    actor = CoordinationActor("coordination", config, list(BOTH), "run")
    for _ in range(2):
        with pytest.raises(StoreFormatError, match="cannot be opened"):
            await actor.ready()


async def test_a_stopped_actor_lets_the_next_one_in(tmp_path: Path) -> None:
    config = Config().replaced(node__data_dir=str(tmp_path), cluster__groups=3).as_dict()
    actor = CoordinationActor("coordination", config, list(BOTH[:1]), "run")
    assert (await actor.ready())["groups"] == 3
    await actor.stop()
    with pytest.raises(UnavailableError, match="stopped"):
        await actor.cluster()
    after = CoordinationActor("coordination", config, list(BOTH[:1]), "run")
    assert (await after.ready())["coordinators"] == [BOTH[0]]
    await after.stop()
