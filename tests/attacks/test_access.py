"""CVEs of other brokers about who may do what: users, rules, files that others can read."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lexicast.actors.mqtt.codec.packets import V5, V311, ConnAck, Connect
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError, LexicastError
from lexicast.cluster.security.acl_file import READ, WRITE
from lexicast.cluster.security.passwords import SHA512, hash_password, read_passwords, with_user, without_user
from lexicast.cluster.security.rules import AccessRules

from ..support.harness import Cluster
from ..support.mqtt_harness import Raw, Served, close_clients, served, unique

LET_IN, CLIENT_ID_NOT_VALID, BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED = 0x00, 0x85, 0x86, 0x87


def row(user: str) -> str:
    """What stands in a password file behind a user's name: the password is theirs."""
    return hash_password(f"{user}'s".encode(), b"s" * 12, SHA512).text()


USERS = with_user(with_user(b"", "ada", row("ada")), "bob", row("bob"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(passwords=USERS) as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    """A broker's with users."""
    yield cluster.port
    await close_clients()


# -- users


@pytest.mark.cve("CVE-2016-9877", "CVE-2026-32696")
@pytest.mark.parametrize("version", [V311, V5])
async def test_a_name_is_no_password(port: int, version: int) -> None:
    """A user's name alone, with an empty password, or a password that is not there."""
    logins: list[tuple[str | None, bytes | None]] = [("ada", None), ("ada", b""), (None, None), ("", b"")]
    for user, password in logins:
        client = await Raw.open(port, version)
        client.send(Connect(version, unique(), True, user_name=user, password=password))
        assert (await client.expect(ConnAck)).reason_code in (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED)


@pytest.mark.cve("CVE-2018-12551")
@pytest.mark.parametrize("line", ["mallory", ":", f":{row('')}", "mallory:", "mallory:plain", "mallory:$6$", "m:$7$1$"])
def test_a_malformed_line_makes_no_user(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_passwords(b"# who\n" + line.encode() + b"\n" + USERS)


@pytest.mark.cve("CVE-2018-12551")
def test_an_empty_line_makes_no_user() -> None:
    assert set(read_passwords(b"\n  \n" + USERS + b"\n\n")) == {"ada", "bob"}


@pytest.mark.cve("CVE-2026-6564")
async def test_a_session_is_its_users(port: int) -> None:
    """Whoever else knows the client id is refused, and the session goes on."""
    client_id = unique()
    first = await Raw.connect(port, client_id, user="ada", password=b"ada's", clean=False, _17=60)
    assert first.connack.reason_code == LET_IN
    await first.subscribe(f"{client_id}/#")
    for clean in (False, True):
        other = await Raw.connect(port, client_id, user="bob", password=b"bob's", clean=clean, _17=60)
        assert other.connack.reason_code == CLIENT_ID_NOT_VALID
    await first.nothing(first, f"{client_id}/x")


async def test_who_is_kicked_is_told_in_the_audit_trail(caplog: pytest.LogCaptureFixture) -> None:
    with served(passwords=USERS) as running, caplog.at_level("WARNING", logger="lexicast.audit"):
        client = await Raw.connect(running.port, "c1", user="ada", password=b"ada's")
        running.run(running.cluster.coordination.give_security({"passwords": without_user(USERS, "ada")}))
        assert [packet.reason_code for packet in await client.closed()] == [NOT_AUTHORIZED]
        assert running.broker().mqtt.logins.refused == {"the user is another one, or gone": 1}
        await close_clients()
    lines = [record.getMessage() for record in caplog.records if record.name == "lexicast.audit"]
    assert lines == ['kicked why="the user is another one, or gone" user="ada" client="c1" address="127.0.0.1"']


# -- rules


@pytest.mark.cve("CVE-2017-7650", "CVE-2026-44838")
@pytest.mark.parametrize("name", ["#", "+", "+/x", "bob/#", ".*", "^bob$|.*", "b.b", "bob/key", "$1"])
def test_a_name_is_put_into_a_pattern_as_it_is(name: str) -> None:
    """No wildcard in it is one, nothing in it is an expression, and it fills one level."""
    rules = AccessRules.of_text("pattern readwrite devices/%u/key\npattern readwrite clients/%c/#\n")
    for user, client_id in ((name, "c"), ("ada", name), (name, name)):
        for topic in (b"devices/bob/key", b"clients/bob/key", b"clients/bob/key/x"):
            assert not rules.rights(user, client_id, topic)
            assert not rules.covers(user, client_id, READ, topic)
    assert rules.rights("bob", "c", b"devices/bob/key") & (READ | WRITE) == READ | WRITE


@pytest.mark.cve("CVE-2018-12550")
@pytest.mark.parametrize("text", ["", "\n\n", "# no rule\n", "user ada\n"])
def test_a_file_without_rules_allows_nothing(text: str) -> None:
    rules = AccessRules.of_text(text)
    for user in ("", "ada"):
        assert not rules.rights(user, "c", b"a/b")
        assert not rules.meets(user, "c", READ, b"#")


@pytest.mark.cve("CVE-2017-7652")
async def test_files_that_cannot_be_read_change_nothing(port: int, cluster: Served) -> None:
    """The users of before are those of after, on every broker."""
    for bad in (None, b"mallory\n", b"\xff\xfe", USERS + b"ada:$6$again\n"):
        with pytest.raises(LexicastError):
            cluster.run(cluster.cluster.coordination.give_security({} if bad is None else {"passwords": bad}))
    assert (await Raw.connect(port, user="ada", password=b"ada's")).connack.reason_code == LET_IN
    assert (await Raw.connect(port, user="mallory", password=b"")).connack.reason_code == BAD_USER_NAME_OR_PASSWORD
    assert (await Raw.connect(port)).connack.reason_code == NOT_AUTHORIZED


# -- files


@pytest.mark.cve("CVE-2017-9868")
async def test_nothing_that_is_written_can_be_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "data"
        async with Cluster(folder, config=Config()) as cluster:
            await cluster.start_coordinator()
            broker = await cluster.start_engine("broker-0")
            await broker.publish(b"a/b", [b"secret"])
            found = [path for path in folder.rglob("*") if path.lstat().st_mode & 0o077 and not path.is_symlink()]
            assert [f"{path.name} {stat.filemode(path.lstat().st_mode)}" for path in found] == []
    finally:
        os.umask(before)
    await asyncio.sleep(0)
