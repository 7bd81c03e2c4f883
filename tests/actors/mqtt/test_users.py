"""Users who log in with brokers that serve: Mosquitto's and paho's clients, wrong passwords, users who come and go,
sessions that are somebody else's."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jwt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from lexicast.actors.mqtt.codec.packets import V311, Disconnect, Will
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.security.passwords import ARGON2ID, PBKDF2, SHA512, hash_password, with_user, without_user

from ...support.harness import eventually
from ...support.mqtt_harness import HOST, WAIT_S, Raw, Served, close_clients, served, unique

LET_IN, CLIENT_ID_NOT_VALID, BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, RATE_EXCEEDED = 0x00, 0x85, 0x86, 0x87, 0x9F
EXPIRES: dict[str, Any] = {"_17": 3_600}


def file_of(**secrets: tuple[str, str]) -> bytes:
    """A password file: {user: (password, kind)}."""
    data = b""
    for user, (password, kind) in secrets.items():
        salt = user.encode().ljust(16, b".")[: 16 if kind == ARGON2ID else 12]
        data = with_user(data, user, hash_password(password.encode(), salt, kind).text())
    return data


USERS = file_of(
    ada=("ada's", SHA512), bob=("bob's", PBKDF2), eve=("eve's", ARGON2ID), tom=("tom's", SHA512), sue=("sue's", SHA512)
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(brokers=2, passwords=USERS) as running:
        yield running


@pytest.fixture(autouse=True)
async def _no_leftovers(cluster: Served) -> AsyncIterator[None]:
    yield
    await close_clients()
    for index in range(2):
        failures: Any = cluster.broker(index).mqtt.logins._back_off
        failures._failures.clear()


def login(port: int, user: str | None, password: str | None, **more: Any) -> Any:
    """A connection that logs in."""
    return Raw.connect(port, user=user, password=None if password is None else password.encode(), **more)


async def code(port: int, user: str | None, password: str | None, **more: Any) -> int:
    """What CONNACK says."""
    client = await login(port, user, password, **more)
    return int(client.connack.reason_code)


@pytest.mark.parametrize("user", ["ada", "bob", "eve"])
async def test_who_knows_the_password_is_let_in_and_nobody_else(cluster: Served, user: str) -> None:
    for _ in range(2):  # the second time by what is remembered
        assert await code(cluster.port, user, f"{user}'s") == LET_IN
    assert await code(cluster.port, user, "wrong") == BAD_USER_NAME_OR_PASSWORD
    assert await code(cluster.port, user, None) == BAD_USER_NAME_OR_PASSWORD
    assert await code(cluster.port, user, f"{user}'s", version=V311) == LET_IN


@pytest.mark.parametrize(
    ("user", "password"), [("mallory", "ada's"), ("", "ada's"), (None, "ada's"), ("Ada", "ada's"), ("ada", "")]
)
async def test_whoever_else_is_not(cluster: Served, user: str | None, password: str) -> None:
    assert await code(cluster.port, user, password) == BAD_USER_NAME_OR_PASSWORD


async def test_who_does_not_log_in_is_not_let_in_where_there_are_users(cluster: Served) -> None:
    assert await code(cluster.port, None, None) == NOT_AUTHORIZED
    client = await Raw.connect(cluster.port, version=V311)
    assert client.connack.reason_code == NOT_AUTHORIZED  # 3.1.1's 5


async def test_who_guesses_has_to_wait_and_others_do_not(cluster: Served) -> None:
    codes = [await code(cluster.port, "sue", f"guess {at}") for at in range(6)]
    assert codes[:4] == [BAD_USER_NAME_OR_PASSWORD] * 4
    assert RATE_EXCEEDED in codes
    assert await code(cluster.port, "sue", "sue's") == RATE_EXCEEDED  # nor is it told whether that one was right
    assert await code(cluster.port, "ada", "ada's") == LET_IN


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize(("password", "succeeds"), [("eve's", True), ("eves", False)])
def test_paho_logs_in(cluster: Served, version: MQTTProtocolVersion, password: str, succeeds: bool) -> None:
    answers: queue.Queue[bool] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, unique("paho"), protocol=version)
    client.username_pw_set("eve", password)
    client.on_connect = lambda *said: answers.put(not said[3].is_failure)
    client.connect(HOST, cluster.port)
    client.loop_start()
    try:
        assert answers.get(timeout=WAIT_S) is succeeds
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize(("password", "succeeds"), [("bob's", True), ("bobs", False)])
def test_mosquitto_pub_logs_in(cluster: Served, password: str, succeeds: bool) -> None:
    command = ["mosquitto_pub", "-h", HOST, "-p", str(cluster.port), "-u", "bob", "-P", password]
    done = subprocess.run([*command, "-t", "t", "-m", "m", "-q", "1"], capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode == 0) is succeeds, done.stderr


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed")
async def test_a_file_of_mosquittos_moves_in(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    for user in ("ada", "bob"):
        created = ["-c"] if user == "ada" else []
        command = ["mosquitto_passwd", *created, "-b", str(file), user, f"{user} of Mosquitto"]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    with served(passwords=file.read_bytes()) as running:
        assert await code(running.port, "bob", "bob of Mosquitto") == LET_IN
        assert await code(running.port, "bob", "ada of Mosquitto") == BAD_USER_NAME_OR_PASSWORD


async def test_a_session_is_never_another_users(cluster: Served) -> None:
    """Neither at its broker nor at another one, neither to go on with it nor to end it."""
    client_id, topic, (here, there) = unique("c"), unique("t"), [cluster.broker(at).mqtt.port for at in range(2)]
    owner = await login(here, "ada", "ada's", client_id=client_id, clean=False, **EXPIRES)
    await owner.subscribe(topic, qos=1)
    for port in (here, there):
        for clean in (False, True):
            assert await code(port, "tom", "tom's", client_id=client_id, clean=clean) == CLIENT_ID_NOT_VALID
    assert await owner.ping() == []  # and it is not disturbed
    await owner.disconnect()
    for port in (here, there):
        for clean in (False, True):
            assert await code(port, "tom", "tom's", client_id=client_id, clean=clean) == CLIENT_ID_NOT_VALID
    publisher = await login(there, "tom", "tom's")
    assert await publisher.publish(topic, b"kept", qos=1) == 0
    again = await login(there, "ada", "ada's", client_id=client_id, clean=False, **EXPIRES)
    assert again.connack.session_present
    assert [message.payload for message in await again.messages(1)] == [b"kept"]


async def test_a_session_that_has_ended_is_nobodys(cluster: Served) -> None:
    client_id = unique("c")
    owner = await login(cluster.port, "ada", "ada's", client_id=client_id)
    assert await code(cluster.port, "tom", "tom's", client_id=client_id) == CLIENT_ID_NOT_VALID
    await owner.disconnect()
    assert await code(cluster.port, "tom", "tom's", client_id=client_id) == LET_IN


async def test_users_who_are_gone_or_have_another_password_are_disconnected_everywhere() -> None:
    with served(brokers=2, passwords=USERS) as running:
        ports = [running.broker(at).mqtt.port for at in range(2)]
        watcher = await login(ports[0], "tom", "tom's")
        await watcher.subscribe("gone/#")
        will = Will(b"gone/sue", b"was here")
        gone = [await login(port, "sue", "sue's", will=will) for port in ports]
        other = await login(ports[1], "ada", "ada's", version=V311)
        stays = await login(ports[1], "eve", "eve's")
        changed = with_user(without_user(USERS, "sue"), "ada", hash_password(b"new", bytes(12), SHA512).text())
        running.run(running.cluster.coordination.give_security({"passwords": changed}))
        for client in gone:
            assert [packet.reason_code for packet in await client.closed()] == [NOT_AUTHORIZED]
        assert await other.closed() == []
        assert {message.topic for message in await watcher.messages(2)} == {"gone/sue"}
        assert await stays.ping() == []
        await eventually(lambda: all(running.broker(at)._security.files.passwords == changed for at in range(2)))
        for port in ports:
            assert await code(port, "sue", "sue's") == BAD_USER_NAME_OR_PASSWORD
            assert await code(port, "ada", "ada's") == BAD_USER_NAME_OR_PASSWORD
            assert await code(port, "ada", "new") == LET_IN
        await close_clients()


async def test_the_sessions_of_users_who_are_gone_are_nobodys() -> None:
    client_id = unique("c")
    with served(brokers=2, passwords=USERS) as running:
        ports = [running.broker(at).mqtt.port for at in range(2)]
        owner = await login(ports[0], "sue", "sue's", client_id=client_id, clean=False, **EXPIRES)
        await owner.subscribe("t", qos=1)
        await owner.disconnect()
        assert await code(ports[1], "tom", "tom's", client_id=client_id) == CLIENT_ID_NOT_VALID
        changed = without_user(USERS, "sue")
        running.run(running.cluster.coordination.give_security({"passwords": changed}))
        await eventually(lambda: all(running.broker(at)._security.files.passwords == changed for at in range(2)))
        taken = await login(ports[1], "tom", "tom's", client_id=client_id, clean=False, **EXPIRES)
        assert (taken.connack.reason_code, taken.connack.session_present) == (LET_IN, False)
        await close_clients()


async def test_a_broker_that_starts_lets_nobody_in_before_it_knows_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordination server has lost its registry: that is not to have none."""
    monkeypatch.setattr("lexicast.actors.broker.security.following.READY_S", 1.0)
    with served(passwords=USERS) as running:
        known = running.cluster.coordination.security_files
        running.run(_forget(running))
        with pytest.raises(UnavailableError, match="does not know the password file"):
            running.run(_start_without_givers(running))
        assert await code(running.port, "ada", "ada's") == LET_IN  # whoever serves keeps to what it has
        assert await code(running.port, None, None) == NOT_AUTHORIZED
        # The next change of the membership tells that broker, which gives them back.
        running.run(running.cluster.start_broker("broker-1"))
        assert running.cluster.coordination.security_files == known
        await close_clients()


async def _forget(running: Served) -> None:
    coordination = running.cluster.coordination
    coordination.security_files = type(coordination).security_files
    rows = coordination._registry.items("security")
    coordination._registry.commit(dict.fromkeys(rows))


async def _start_without_givers(running: Served) -> None:
    """Start a broker while nobody gives the files back."""
    coordination = running.cluster.coordination
    restore = coordination.restore_security

    async def nobody(files: Any) -> bool:
        raise UnavailableError("not now")

    coordination.restore_security = nobody  # type: ignore[method-assign]  # a coordination server that cannot be reached
    try:
        await running.cluster.start_broker("broker-1")
    finally:
        coordination.restore_security = restore  # type: ignore[method-assign]  # and is there again


async def test_status_tells_of_logins(cluster: Served) -> None:
    before = cluster.broker().status()["mqtt"]["logins"]
    assert await code(cluster.port, "ada", "ada's") == LET_IN
    assert await code(cluster.port, "ada", "wrong") == BAD_USER_NAME_OR_PASSWORD
    after = cluster.broker().status()["mqtt"]["logins"]
    assert after["users"] == 5
    assert after["let_in"]["password"] == before["let_in"].get("password", 0) + 1
    assert after["refused"]["wrong password"] == before["refused"].get("wrong password", 0) + 1


async def test_refusals_are_told_in_the_audit_trail(cluster: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="lexicast.audit"):
        assert await code(cluster.port, 'mal"lory\n', "x", client_id="c 1") == BAD_USER_NAME_OR_PASSWORD
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        'login_refused why="no such user" user="mal\\"lory\\n" client="c 1" address="127.0.0.1"',
    ]


async def test_a_session_that_was_nobodys_begins_anew_for_a_user() -> None:
    with served(passwords=USERS, mqtt__allow_anonymous="loopback") as running:
        client_id = unique("c")
        nobody = await Raw.connect(running.port, client_id, clean=False, **EXPIRES)
        await nobody.subscribe("t")
        somebody = await login(running.port, "ada", "ada's", client_id=client_id, clean=False, **EXPIRES)
        assert (somebody.connack.reason_code, somebody.connack.session_present) == (LET_IN, False)
        assert isinstance((await nobody.closed())[-1], Disconnect)
        for clean in (False, True):
            back = await Raw.connect(running.port, client_id, clean=clean)
            assert back.connack.reason_code == CLIENT_ID_NOT_VALID
        await close_clients()


SECRET = b"a secret that nobody guesses, of 40 bytes"


def token(until_s: float, user: str = "sensor", secret: bytes = SECRET) -> str:
    """One that ends in so many seconds."""
    return jwt.encode({"sub": user, "exp": time.time() + until_s}, secret, "HS256")


async def test_tokens_are_passwords_until_they_end() -> None:
    with served(passwords=USERS, token_keys=SECRET, security__jwt_algorithms=("HS256",)) as running:
        port = running.port
        assert await code(port, "sensor", token(60)) == LET_IN
        assert await code(port, None, token(60)) == LET_IN
        assert await code(port, "", token(60), version=V311) == LET_IN
        assert await code(port, "ada", "ada's") == LET_IN
        assert await code(port, "ada", token(60)) == BAD_USER_NAME_OR_PASSWORD
        assert await code(port, "sensor", token(-1)) == BAD_USER_NAME_OR_PASSWORD
        assert await code(port, "sensor", token(60, secret=bytes(40))) == BAD_USER_NAME_OR_PASSWORD
        ends, stays = await login(port, None, token(1.5)), await login(port, None, token(600))
        assert [packet.reason_code for packet in await ends.closed()] == [NOT_AUTHORIZED]
        assert await stays.ping() == []
        others = {"passwords": USERS, "token_keys": SECRET[::-1]}
        running.run(running.cluster.coordination.give_security(others))
        assert [packet.reason_code for packet in await stays.closed()] == [NOT_AUTHORIZED]
        await close_clients()
