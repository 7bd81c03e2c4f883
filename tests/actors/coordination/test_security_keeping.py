"""The files of security in the registry: kept over restarts, known to be lost where they are, given back by brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from lexicast.actors.coordination.security_keeping import PIECE_BYTES
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.cluster.errors import ConfigError, UsageError
from lexicast.cluster.security.files import FILE_BYTES_MAX, NOTHING_KNOWN, SecurityFiles
from lexicast.cluster.security.passwords import SHA512, hash_password
from lexicast.storage.registry import FILE, MAP_BYTES

ROW = hash_password(b"x", bytes(12), SHA512).text()
USERS = f"ada:{ROW}\n".encode()
RULES = b"topic read #\n"
MANY = "".join([f"device-{at}:{ROW}\n" for at in range(9_000)]).encode()


async def give(
    server: LocalCoordination, passwords: bytes | None, rules: bytes | None, starting: bool = False
) -> tuple[int, list[str]]:
    return await server.give_security(SecurityFiles(0, passwords, rules).given(), starting)


@contextmanager
def server(folder: Path) -> Iterator[LocalCoordination]:
    with LocalCoordination(folder) as made:
        yield made


async def test_files_are_kept_over_a_restart(tmp_path: Path) -> None:
    assert len(MANY) > 2 * PIECE_BYTES
    with server(tmp_path) as first:
        assert first.security_files == NOTHING_KNOWN
        version, changed = await give(first, MANY, RULES, True)
        assert changed == ["users: 9,000 added", "rules: 1, where there were 0"]
        assert (await first.members(-1, 0)).security == version > 0
    with server(tmp_path) as second:
        assert await second.security() == SecurityFiles(version, MANY, RULES)
        shorter, _ = await give(second, USERS, RULES)
        assert shorter > version
    with server(tmp_path) as third:
        assert await third.security() == SecurityFiles(shorter, USERS, RULES)
        assert len(third._registry.items("security/passwords")) == 1


async def test_an_empty_file_is_not_the_same_as_none(tmp_path: Path) -> None:
    with server(tmp_path) as first:
        await give(first, b"", None, True)
    with server(tmp_path) as second:
        files = await second.security()
        assert (files.passwords, files.rules) == (b"", None)


async def test_the_same_files_have_the_same_version(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        version, _ = await give(one, USERS, None, True)
        before = (await one.members(-1, 0)).version
        assert await give(one, USERS, None, True) == (version, [])
        assert await give(one, USERS, None) == (version, [])
        assert (await one.members(-1, 0)).version == before


@pytest.mark.parametrize(
    ("passwords", "rules", "says"),
    [
        (b"ada:x\n", RULES, "the password file, line 1: the password is not hashed"),
        (USERS, b"topic read #\nnonsense", "the acl file, line 2"),
        (USERS, b"topic \xff", "the acl file, line 1: it is not UTF-8"),
        (bytes(FILE_BYTES_MAX + 1), None, "at most"),
    ],
)
async def test_files_with_something_wrong_change_nothing(
    tmp_path: Path, passwords: bytes, rules: bytes | None, says: str
) -> None:
    with server(tmp_path) as one:
        await give(one, USERS, RULES, True)
        before = await one.security()
        with pytest.raises(ConfigError, match=says):
            await give(one, passwords, rules)
        assert await one.security() == before


async def test_which_files_there_are_is_decided_at_the_start(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        await give(one, USERS, None, True)
        with pytest.raises(UsageError, match=r"restart it \(acl file\)"):
            await give(one, USERS, RULES)
        with pytest.raises(UsageError, match=r"restart it \(password file\)"):
            await give(one, None, None)
        await give(one, None, RULES, True)


async def test_a_lost_registry_knows_nothing_and_takes_the_newest_that_brokers_have(tmp_path: Path) -> None:
    older, newer = SecurityFiles(7, USERS, None), SecurityFiles(8, b"", None)
    with server(tmp_path) as one:
        assert (await one.members(-1, 0)).security == 0
        assert await one.restore_security(older)
        assert await one.restore_security(newer)
        assert not await one.restore_security(older)
        assert await one.security() == newer
        assert (await one.members(-1, 0)).security == 8
        version, _ = await give(one, USERS, None)
        assert version > 8
    with server(tmp_path) as again:
        assert (await again.security()).version == version


@pytest.mark.parametrize("key", [b"security", b"security/passwords/00001"])
async def test_a_damaged_row_is_no_absent_file(tmp_path: Path, key: bytes) -> None:
    with server(tmp_path) as one:
        version, _ = await give(one, MANY, RULES, True)
    with (
        lmdb.open(str(tmp_path / FILE), subdir=False, map_size=MAP_BYTES) as environment,
        environment.begin(write=True) as transaction,
    ):
        value = bytearray(transaction.get(key) or b"")
        value[-1] ^= 1
        transaction.put(key, bytes(value))
    with server(tmp_path) as again:
        assert await again.security() == NOTHING_KNOWN
        assert (await again.members(-1, 0)).security == 0
        assert await again.restore_security(SecurityFiles(version, MANY, RULES))
    with server(tmp_path) as mended:
        assert await mended.security() == SecurityFiles(version, MANY, RULES)


async def test_files_that_were_not_taken_are_told_of_until_better_ones_are(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        one.security_paths = {"passwords": "/etc/passwords"}
        await give(one, USERS, None, True)
        await one.refuse_security("line 7: it has no ':'")
        told = one.status()["security"]
        assert told["refused"]["why"] == "line 7: it has no ':'"
        assert told["paths"] == {"passwords": "/etc/passwords"}
        assert told["bytes"] == {"passwords": len(USERS)}
        assert ROW not in str(told)
        await give(one, USERS, None)
        assert one.status()["security"]["refused"] is None


async def test_what_would_not_be_taken_any_more_can_be_mended(tmp_path: Path) -> None:
    """An earlier version may have taken what this one refuses."""
    with server(tmp_path) as first:
        first._keep_security(SecurityFiles(5, b"rubbish\n", RULES))
    with server(tmp_path) as second:
        version, told = await give(second, USERS, RULES)
        assert version > 5
        assert told == ["users: 1 added", "rules: 1, where there were 0"]
        assert second.security_files.passwords == USERS
