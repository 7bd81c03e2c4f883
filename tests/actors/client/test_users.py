"""Python clients that log in as users, at the ports of MQTT, without the cluster's key: each right, and who is none."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import msgpack
import pytest

import lexicast
from lexicast.actors.broker.python_clients.user_port import UserPort
from lexicast.actors.client import connection
from lexicast.actors.client.address import ADDRESS_VARIABLE, DATA_DIR_VARIABLE
from lexicast.actors.client.awaited_positions import PublishManyRefusedError
from lexicast.actors.link.handshake import ListenerLink
from lexicast.actors.link.user_handshake import LoginClaim, UserDiallerLink, secrets_may_cross
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import V5, Connect
from lexicast.actors.mqtt.login.logins import Logins
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.cluster.blocks import Block
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import (
    AuthenticationError,
    LexicastError,
    LimitError,
    NotAuthorizedError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.protocol.broker_list import BrokerList
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import DELIVER, LINK_PREFACE, LOGIN
from lexicast.cluster.security.likenesses import likenesses
from lexicast.cluster.security.passwords import ARGON2ID, SHA512, hash_password, read_passwords, with_user

from ...support.certificates import authority, served_by_tls, tls_port
from ...support.harness import eventually
from ...support.mqtt_harness import HOST, Served, served, unique

SECRET = b"a secret of the cluster's tokens, of enough bytes"
RULES = b"""
topic read public/#

user ada
topic readwrite plant/#
topic deny plant/secret/#
topic nohistory plant/meter
topic read public/#

user boss
topic readwrite #

pattern readwrite own/%u/#
"""


def passwords(**others: str) -> bytes:
    """ada, bob and boss, whose passwords are their names but for `others`; slow's takes Argon2id."""
    data = b""
    for user in ("ada", "bob", "boss"):
        word = others.get(user, user)
        data = with_user(data, user, hash_password(word.encode(), user.encode().ljust(12), SHA512).text())
    return with_user(data, "slow", hash_password(b"slow", b"salt" * 4, ARGON2ID).text())


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a key, whose user has set nothing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "none"))
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(passwords=passwords(), rules=RULES, token_keys=SECRET, security__jwt_algorithms=("HS256",)) as running:
        yield running


def at(running: Served) -> str:
    """Where users log in."""
    return f"link:tcp:{HOST}:{running.port}"


def as_user(running: Served, user: str, **more: Any) -> lexicast.Client:
    """A client of a user whose password is its name."""
    return lexicast.connect(at(running), user=user, password=user, give_up_s=20, **more)


def token(user: str, for_s: float = 60.0, **more: Any) -> str:
    """One that ends in so many seconds."""
    return jwt.encode({"sub": user, "exp": time.time() + for_s, **more}, SECRET, "HS256")


async def payloads(messages: Any) -> list[bytes]:
    """Of a history."""
    return [message.payload async for message in messages]


async def publish_on(bus: lexicast.Client, topic: str) -> None:
    """Until something is raised."""
    while True:
        await bus.publish(topic, "again")
        await asyncio.sleep(0.02)


# -- publishing


async def test_what_may_be_published_is_and_else_nothing(cluster: Served) -> None:
    topic = unique("plant/")
    async with as_user(cluster, "ada") as ada:
        position = await ada.publish(topic, "1")
        assert position.offset > 0
        with pytest.raises(NotAuthorizedError, match="user 'ada' may not publish to 'other/x'"):
            await ada.publish("other/x", "2")
        with pytest.raises(NotAuthorizedError, match="plant/secret"):
            await ada.publish("plant/secret/x", "2", retain=True)
        with pytest.raises(NotAuthorizedError, match="cluster's own"):
            await ada.publish("$sdc/x", "2")
        assert await payloads(ada.history(topic)) == [b"1"]
        assert ada.statistics["refused"] == 3
    async with as_user(cluster, "boss") as boss:
        assert await boss.count(["other/x", "plant/secret/#"]) == 0
    assert cluster.broker().engine.rights.refused["publish"] >= 3


async def test_of_many_those_are_refused_that_may_not_be_published(cluster: Served) -> None:
    """Also where they travel in one entry: of the same topic group, mixed, and sent at once."""
    mine, level = unique("plant/"), unique()
    topics = [f"{mine}/{n}" if n % 3 else f"{level}/{n}" for n in range(60)]
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        with pytest.raises(PublishManyRefusedError, match=r"20 of 60.*may not publish") as refused:
            await ada.publish_many([(topic, str(n)) for n, topic in enumerate(topics)])
        places = refused.value.positions
        assert [place is None for place in places] == [n % 3 == 0 for n in range(60)]
        stored = {message.position: message.payload async for message in boss.history(f"{mine}/#")}
        assert stored == {place: str(n).encode() for n, place in enumerate(places) if place is not None}
        assert await boss.count(f"{level}/#") == 0
        assert await ada.publish(f"{mine}/1", "after") not in places


async def test_publications_say_whose_they_are(cluster: Served) -> None:
    topic = unique("plant/")
    async with as_user(cluster, "ada", client_id="sensor-7") as ada, as_user(cluster, "boss") as boss:
        await ada.publish(topic, "1")
        await ada.publish(topic, "2", retain=True)
        assert [message.publisher async for message in boss.history(topic)] == ["sensor-7", "sensor-7"]


async def test_what_somebody_left_goes_with_the_right_to_leave_it(cluster: Served) -> None:
    topic = unique("plant/")
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        await ada.publish(topic, "left", retain=True)
        async with boss.subscribe(topic) as before:
            assert (await anext(before)).payload == b"left"
        give(cluster, rules=RULES.replace(b"topic readwrite plant/#", b"topic read plant/#"))
        try:
            async with boss.subscribe(topic) as after:
                await boss.publish(topic, "live")
                assert (await anext(after)).payload == b"live"
        finally:
            give(cluster)


# -- reading


async def test_what_may_be_read_comes_and_nothing_else(cluster: Served) -> None:
    level = unique()
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        async with ada.subscribe("#") as everything:
            await asyncio.sleep(0)
            for topic in (f"plant/{level}", f"plant/secret/{level}", f"else/{level}", f"own/bob/{level}"):
                await boss.publish(topic, topic)
            await boss.publish(f"own/ada/{level}", "last")
            got = [await anext(everything) for _ in range(2)]
            while got[-1].payload != b"last":
                got.append(await anext(everything))
        ours = [message.topic for message in got if level in message.topic]
        assert ours == [f"plant/{level}", f"own/ada/{level}"]


async def test_nothing_is_told_of_what_may_not_be_read(cluster: Served) -> None:
    """Neither names of topics and of publishers that are in the same blocks, nor how repeats of others are told: who
    knows another's producer makes what that publishes next a repeat."""
    level, blocks = unique(), list[Block]()

    def noting(message: tuple[Any, ...]) -> None:
        if message[0] == DELIVER:
            blocks.extend(map(Block.from_wire, message[2]))
        heard(message)

    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss", client_id=f"boss-{level}") as boss:
        heard, ada.internals.on_message = ada.internals.on_message, noting  # type: ignore[method-assign]  # to see it
        topics = [f"{which}/{level}/{n}" for n in range(40) for which in ("plant", "plant/secret")]
        async with ada.subscribe("#", since="now") as stream:
            await boss.publish_many([(topic, "1") for topic in topics], retain=True)
            for _ in range(40):
                assert (await anext(stream)).topic.startswith(f"plant/{level}/")
        live = len(blocks)
        page = await ada.internals.request("history", (b"#",), ("time", 0), FOREVER_US, None, 1 << 20, None)
        blocks += map(Block.from_wire, page["blocks"])
        past = len(blocks)
        kept = await ada.internals.request("subscribe", 99, (b"plant/#",), None, {})
        blocks += map(Block.from_wire, kept["retained"])
        assert 0 < live < past < len(blocks)
    for block in blocks:
        named = {record.topic for record in block.records()}
        assert {*block.meta.topics} == named
        assert not any([topic.startswith(b"plant/secret") for topic in named])
        assert (block.meta.producers, block.meta.marks) == ((), ())


async def test_filters_that_can_bring_nothing_are_refused(cluster: Served) -> None:
    async with as_user(cluster, "ada") as ada:
        for wrong in ("else/#", "plant/secret/x", ["plant/#", "else/x"]):
            with pytest.raises(NotAuthorizedError, match=r"user 'ada' may not read '(else|plant/secret)"):
                await anext(ada.subscribe(wrong))
            with pytest.raises(NotAuthorizedError, match="may not read what was published"):
                await payloads(ada.history(wrong))
            with pytest.raises(NotAuthorizedError):
                await ada.count(wrong)
        with pytest.raises(NotAuthorizedError):
            await payloads(ada.history("else/#", last=1))
        with pytest.raises(NotAuthorizedError):
            await anext(ada.subscribe("else/#", group="workers"))


async def test_the_past_is_a_right_of_its_own(cluster: Served) -> None:
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        other = unique("plant/")
        before = await boss.count("plant/meter")
        await boss.publish_many([("plant/meter", "old"), (other, "old"), ("plant/secret/x", "old")])
        with pytest.raises(NotAuthorizedError, match="what was published to 'plant/meter'"):
            await payloads(ada.history("plant/meter"))
        past = [message.topic async for message in ada.history("plant/#")]
        assert other in past
        assert not {"plant/meter", "plant/secret/x"} & {*past}
        assert await ada.count("plant/#") == len(past)
        lasts = [message.topic async for message in ada.history("plant/#", last=1)]
        assert other in lasts
        assert "plant/meter" not in lasts
        assert await boss.count("plant/meter") == before + 1
        # Live it is read, with the past of those that may be.
        async with ada.subscribe("plant/+", since="1h") as stream:
            await boss.publish("plant/meter", "new")
            got = [await anext(stream)]
            while got[-1].payload != b"new":
                got.append(await anext(stream))
        assert [message.payload for message in got if message.topic == "plant/meter"] == [b"new"]
        assert other in [message.topic for message in got]


async def test_retained_conditions_and_windows(cluster: Served) -> None:
    level = unique()
    readable, hidden = f"plant/{level}/a", f"plant/secret/{level}"
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        for topic in (readable, hidden):
            await boss.publish_many([(topic, json.dumps({"n": n})) for n in range(4)], retain=True)
        async with ada.subscribe("#") as stream:
            found = [await anext(stream)]
            while found[-1].topic != readable:
                found.append(await anext(stream))
        assert not any([message.topic.startswith(("plant/secret", "else")) for message in found])
        held = ada.history(f"plant/{level}/#", where="n >= 2")
        assert [json.loads(each)["n"] for each in await payloads(held)] == [2, 3]
        assert await ada.count("plant/#", where=f"topic = '{hidden}'") == 0
        async with ada.subscribe(f"plant/{level}/+", since="1h", until="+1h", where="n = 1") as window:
            assert json.loads((await anext(window)).payload)["n"] == 1


async def test_a_group_passes_over_what_its_member_may_not_read(cluster: Served) -> None:
    level, group = unique(), unique("workers")
    async with as_user(cluster, "ada") as ada, as_user(cluster, "boss") as boss:
        async with ada.subscribe("plant/#", group=group) as jobs:
            await boss.publish_many([(f"plant/secret/{level}", "no"), (f"plant/{level}", "yes")] * 3)
            got = [await anext(jobs) for _ in range(3)]
        assert {(message.topic, message.payload) for message in got} == {(f"plant/{level}", b"yes")}


async def test_filters_of_one_client_are_so_many_those_of_groups_too() -> None:
    with served(mqtt__subscriptions_per_session_max=3) as running:
        async with (
            lexicast.connect(at(running), give_up_s=20) as bus,
            bus.subscribe(["a", "b"]),
            bus.subscribe("c", group="workers"),
        ):
            for group in (None, "workers"):
                with pytest.raises(LimitError, match="3 filters at the most"):
                    await anext(bus.subscribe("d", group=group))


async def test_new_rules_count_at_once(cluster: Served) -> None:
    level = unique()
    async with as_user(cluster, "bob") as bob, as_user(cluster, "boss") as boss:
        with pytest.raises(NotAuthorizedError):
            await bob.publish(f"plant/{level}", "1")
        async with bob.subscribe(f"own/bob/{level}") as stream:
            await bob.publish(f"own/bob/{level}", "1")
            assert (await anext(stream)).payload == b"1"
            give(cluster, rules=RULES.replace(b"pattern readwrite own/%u/#", b"user bob\ntopic write own/bob/#"))
            try:
                await bob.publish(f"own/bob/{level}", "2")
                with pytest.raises(NotAuthorizedError):
                    await bob.count(f"own/bob/{level}")
            finally:
                give(cluster)
            await boss.publish(f"own/bob/{level}", "3")
            assert (await anext(stream)).payload == b"3"


# -- who is let in


async def test_who_is_nobody_is_not_let_in(cluster: Served) -> None:
    async def refused(match: str, **login: Any) -> None:
        with pytest.raises(AuthenticationError, match=match):
            async with lexicast.connect(at(cluster), give_up_s=10, **login):
                pass

    before = sum(cluster.broker().mqtt.logins.refused.values())
    await refused("wrong user name, password or token", user="ada", password="bob")
    await refused("wrong user name, password or token", user="nobody", password="bob")
    await refused("nobody is let in here without a login")
    await refused("has ended", token=token("ada", -5.0))
    await refused("another user", user="bob", token=token("ada"))
    await refused("none of the keys", token=jwt.encode({"sub": "ada", "exp": time.time() + 60}, b"x" * 40, "HS256"))
    assert sum(cluster.broker().mqtt.logins.refused.values()) == before + 6
    assert len(cluster.broker().clients.sessions) == 0


async def test_slow_hashes_and_tokens_let_in_too(cluster: Served) -> None:
    async with as_user(cluster, "slow") as slow, lexicast.connect(at(cluster), token=token("ada")) as ada:
        await ada.publish(unique("plant/"), "1")
        await slow.publish(unique("own/slow/"), "1")
    async with lexicast.connect(at(cluster), user="ada", token=lambda: token("ada")) as again:
        await again.publish(unique("plant/"), "1")


async def test_a_login_ends_with_its_token(cluster: Served) -> None:
    async with lexicast.connect(at(cluster), token=token("ada", 1.5), give_up_s=20) as ada:
        topic = unique("plant/")
        await ada.publish(topic, "1")
        with pytest.raises(AuthenticationError, match=r"has ended|login is over"):
            await publish_on(ada, topic)


async def test_a_token_that_is_renewed_goes_on(cluster: Served) -> None:
    given: list[str] = []

    def renewed() -> str:
        given.append(token("ada", 1.5 if not given else 60.0))
        return given[-1]

    async with lexicast.connect(at(cluster), token=renewed, give_up_s=20) as ada:
        topic = unique("plant/")
        async with ada.subscribe(topic) as stream:
            await ada.publish(topic, "1")
            assert (await anext(stream)).payload == b"1"
            await eventually(lambda: ada.statistics["links"] == 2)
            await ada.publish(topic, "2")
            assert (await anext(stream)).payload == b"2"
    assert len(given) == 2


async def test_who_is_revoked_is_told_and_gone(cluster: Served) -> None:
    topic = unique("own/bob/")
    async with as_user(cluster, "bob") as bob, as_user(cluster, "ada") as ada:
        await bob.publish(topic, "1")
        give(cluster, passwords(bob="another"))
        try:
            with pytest.raises(AuthenticationError, match="wrong user name"):
                await publish_on(bob, topic)
            await ada.publish(unique("plant/"), "1")
            assert ada.statistics["links"] == 1
        finally:
            give(cluster)


async def test_who_is_revoked_while_a_password_is_verified_is_not_let_in() -> None:
    logins = Logins(Config().replaced(security__password_file="p"))
    users = read_passwords(passwords())
    logins.update(users, likenesses(users))
    port = UserPort(logins, lambda link, user: None, {}, 1 << 20, Beats())
    link = port.link(lambda _: None)
    link.connection_made(Ends((HOST, 1), (HOST, 2)))
    asked = asyncio.ensure_future(port.log_in(link, LoginClaim("c", "slow", b"slow")))
    await asyncio.sleep(0)
    logins.update({}, likenesses({}))
    with pytest.raises(AuthenticationError, match="another one, or gone: log in again"):
        await asked
    assert logins.refused["the user is another one, or gone"] == 1
    logins.close()
    link.connection_lost(None)


def give(running: Served, words: bytes | None = None, rules: bytes = RULES) -> None:
    """Other files; returns once the broker goes by them."""
    files = {"passwords": words or passwords(), "rules": rules, "token_keys": SECRET}
    running.run(running.cluster.coordination.give_security(files))
    until_s = time.monotonic() + 30
    while running.broker()._security.files.given() != files:
        assert time.monotonic() < until_s
        time.sleep(0.005)


# -- operators


async def test_what_is_an_operators_is_refused_with_what_to_do(cluster: Served) -> None:
    async with as_user(cluster, "boss") as boss:
        for method, arguments in (
            ("status", ()),
            ("cluster", ()),
            ("clients", (10,)),
            ("node_drain", ("node", True)),
            ("node_remove", ("node",)),
            ("security_give", ({},)),
            ("security_refuse", ("x",)),
            ("tls_reload", ()),
            ("audience", (b"a", ())),
            ("dictionary_put", (0, 1, "x", b"")),
            ("session_open", ()),
        ):
            with pytest.raises(NotAuthorizedError, match="needs the cluster's key"):
                await boss.internals.request(method, *arguments)
        with pytest.raises(NotAuthorizedError, match="needs the cluster's key"):
            await anext(boss.subscribe("#", sample_records_per_s=10))
        assert await boss.count("none/of/it") == 0


# -- the connection


@pytest.mark.parametrize("words", [b"\x93\x12\1\1", b"\xc1", b"\xdd\xff\xff\xff\xff" * 100, b"x" * 200_000])
async def test_a_stranger_at_the_port_is_no_link(cluster: Served, words: bytes) -> None:
    reader, writer = await asyncio.open_connection(HOST, cluster.port)
    writer.write(LINK_PREFACE + words)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    async with as_user(cluster, "ada") as ada:
        await ada.publish(unique("plant/"), "1")


def made_room(unpack: msgpack.Unpacker, items: int) -> int:
    """The bytes that arrays of so many items take, each within the one before it, as their beginnings come."""
    unpack.feed((b"\xdd" + items.to_bytes(4, "big")) * 2_000)
    tracemalloc.start()
    try:
        with suppress(ValueError):
            unpack.unpack()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("groups", "most"), [(100, 1_024), (10_000, 10_000)])
async def test_what_a_user_begins_and_does_not_send_takes_little_room(groups: int, most: int) -> None:
    """msgpack makes room for an array when it begins, and takes 1,024 of them within each other."""
    port = UserPort(Logins(Config()), lambda link, user: None, {"groups": groups}, 1 << 20, Beats())
    unpack = port.link(lambda _: None)._messages
    assert made_room(unpack(), most + 1) < 1 << 16
    assert 0 < made_room(unpack(), most) < 1_200 * 8 * most
    whole = unpack()
    whole.feed(msgpack.packb([0] * most))
    assert len(whole.unpack()) == most


async def test_what_a_stranger_begins_takes_less() -> None:
    for link in (
        UserPort(Logins(Config()), lambda link, user: None, {}, 1 << 20, Beats()).link(lambda _: None),
        ListenerLink(b"k", "c", lambda _: None, {}),
    ):
        most = link.handshake_items_max
        assert made_room(link._unpacker, most) < 1 << 18


async def test_a_connect_in_pieces_is_no_link(cluster: Served) -> None:
    """Its third byte is 0 too."""
    reader, writer = await asyncio.open_connection(HOST, cluster.port)
    words = encode_packet(Connect(V5, unique(), user_name="ada", password=b"ada"), V5)
    for at in range(4):
        writer.write(words[at : at + 1])
        await asyncio.sleep(0.05)
    writer.write(words[4:])
    assert (await asyncio.wait_for(reader.readexactly(4), 15))[0] == 0x20
    writer.close()


async def test_links_count_among_connections() -> None:
    with served(mqtt__connections_max=2) as running:
        async with lexicast.connect(at(running)) as one, lexicast.connect(at(running)) as two:
            assert (one.statistics["links"], two.statistics["links"]) == (1, 1)
            with pytest.raises(LexicastError):
                await lexicast.connect(at(running), give_up_s=2).open()
        await eventually(lambda: not running.broker().mqtt.links_of_users)
        async with lexicast.connect(at(running)) as three:
            await three.publish("a/b", "1")


async def test_who_has_not_logged_in_is_let_in_where_mqtt_lets_them(tmp_path: Path) -> None:
    with served() as running:
        async with lexicast.connect(at(running)) as bus:
            await bus.publish("a/b", "1")
            assert await payloads(bus.history("#")) == [b"1"]
            with pytest.raises(NotAuthorizedError, match="needs the cluster's key"):
                await bus.internals.request("status")
        with pytest.raises(AuthenticationError):
            await lexicast.connect(at(running), user="ada", password="x", give_up_s=5).open()


async def test_over_tls_the_broker_is_known_by_its_certificate(tmp_path: Path) -> None:
    made = authority(tmp_path, "sensor-17")
    words = {"passwords": passwords(), "rules": RULES}
    with served_by_tls(made, "optional", tls__user_from="cn", **words) as running:
        address, trusted = f"link:tls:localhost:{tls_port(running)}", str(made.path("ca", "crt"))
        async with lexicast.connect(address, user="ada", password="ada", tls=trusted) as ada:
            topic = unique("plant/")
            await ada.publish(topic, b"x" * 500_000)
            assert [len(each) for each in await payloads(ada.history(topic))] == [500_000]
        with pytest.raises(AuthenticationError, match="nobody vouches"):
            await lexicast.connect(address, user="ada", password="ada", give_up_s=5).open()
        with pytest.raises(LexicastError):
            await lexicast.connect(f"link:tcp:{HOST}:{tls_port(running)}", user="ada", password="ada").open()


def tell_of(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Have every broker tell its clients of this one."""
    told = BrokerList({address.partition(":")[2]: (address,)}, ())
    monkeypatch.setattr(connection, "read_broker_list", lambda _: told)


async def lose_link(bus: lexicast.Client) -> None:
    """Break its link, once it was told of another broker: that is tried first."""
    known = bus.internals.connection
    await eventually(lambda: len(known._brokers.endpoints) == 2)
    assert known.link is not None
    known.link.abort()


async def reconnected(bus: lexicast.Client) -> None:
    """Its link breaks; returns once it has another one, having tried both brokers."""
    await lose_link(bus)
    await eventually(lambda: bus.statistics["links"] == 2)
    known = bus.internals.connection
    assert known._choice._listed.keys() == set(known._brokers.endpoints)


async def test_a_broker_by_an_address_that_its_certificate_does_not_name_ends_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers tell of each other by the addresses of machines, and certificates name what users connect to."""
    made = DevelopmentAuthority(tmp_path).create()
    made.issue_server(["localhost"])
    with served_by_tls(made, passwords=passwords(), rules=RULES) as running:
        port, trusted = tls_port(running), str(made.path("ca", "crt"))
        tell_of(monkeypatch, f"tls:{HOST}:{port}")
        address = f"link:tls:localhost:{port}"
        async with lexicast.connect(address, user="ada", password="ada", tls=trusted, give_up_s=20) as ada:
            await reconnected(ada)
            await ada.publish(unique("plant/"), "1")


async def test_who_needs_no_login_at_home_is_not_ended_by_a_broker_that_wants_one(
    cluster: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as home:
        tell_of(monkeypatch, at(cluster).removeprefix("link:"))
        async with lexicast.connect(at(home), give_up_s=20) as bus:
            await reconnected(bus)
            await bus.publish("a/b", "1")


async def test_a_login_that_another_broker_refuses_is_not_tried_on(
    cluster: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(passwords=with_user(b"", "eve", hash_password(b"eve", b"e" * 12, SHA512).text())) as home:
        tell_of(monkeypatch, at(cluster).removeprefix("link:"))
        async with lexicast.connect(at(home), user="eve", password="eve", give_up_s=20) as eve:
            await lose_link(eve)
            with pytest.raises(AuthenticationError, match="the login was refused"):
                await eve.publish("a/b", "1")


@pytest.mark.parametrize(
    ("peer", "own", "may"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("::1", 1, 0, 0), ("::1", 2, 0, 0), True),
        (("192.0.2.7", 1), ("192.0.2.7", 2), True),
        (("192.0.2.7", 1), ("192.0.2.8", 2), False),
        ("/run/x.sock", "", True),
        (None, None, False),
    ],
)
def test_where_secrets_may_cross(peer: Any, own: Any, may: bool) -> None:
    assert secrets_may_cross(Ends(peer, own)) is may
    assert secrets_may_cross(Ends(peer, own, object()))


class Ends(asyncio.Transport):
    """A transport between these ends."""

    def __init__(self, peer: Any, own: Any, ssl_object: object = None) -> None:
        super().__init__({"peername": peer, "sockname": own, "ssl_object": ssl_object})
        self.written = b""
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of no interest."""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True


async def test_a_password_is_not_sent_over_an_unencrypted_network() -> None:
    link = UserDiallerLink(LoginClaim("c", "ada", b"a secret"), lambda _: None)
    transport = Ends(("192.0.2.7", 1883), ("192.0.2.8", 4000))
    link.connection_made(transport)
    with pytest.raises(AuthenticationError, match="unencrypted, and was not sent: connect by TLS"):
        await link.wait_open()
    assert (transport.written, transport.aborted) == (b"", True)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"user": "ada"}, "password or token"),
        ({"password": "x"}, "goes with a user"),
        ({"user": "ada", "password": "x", "token": "y"}, "not both"),
        ({"user": "ada", "password": "x", "address": "auto"}, "is for operators"),
        ({"user": "ada", "password": "x", "data_dir": "/tmp"}, "without key and data_dir"),
        ({"user": "ada", "password": "x", "address": "link:tcp:here:1", "key": b"k"}, "without key and data_dir"),
        ({"user": "ada", "password": "x", "address": "link:unix:/x"}, "link:tls:HOST:PORT"),
        ({"address": "link:tls:nowhere"}, "link:tls:HOST:PORT"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        lexicast.connect(**arguments)


async def test_a_secret_that_is_none_is_said(cluster: Served, tmp_path: Path) -> None:
    wrong: list[Any] = ["", 7, "x" * 70_000]
    for word in wrong:
        with pytest.raises(UsageError):
            await lexicast.connect(at(cluster), user="ada", password=lambda word=word: word).open()


async def test_the_environment_says_who(cluster: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word").write_text("ada\n")
    monkeypatch.setenv("LEXICAST_ADDRESS", at(cluster))
    monkeypatch.setenv("LEXICAST_USER", "ada")
    monkeypatch.setenv("LEXICAST_PASSWORD_FILE", str(tmp_path / "word"))
    async with lexicast.connect() as ada:
        await ada.publish(unique("plant/"), "1")
    (tmp_path / "word").write_text("bob\n")
    with pytest.raises(AuthenticationError):
        await lexicast.connect(give_up_s=5).open()


async def test_without_key_and_login_it_is_said_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="users without its data folder log in at a broker"):
        await lexicast.connect().open()


async def test_another_protocol_version_is_told(cluster: Served) -> None:
    reader, writer = await asyncio.open_connection(HOST, cluster.port)
    writer.write(LINK_PREFACE + msgpack.packb((LOGIN, 999, "c", None, None)))
    assert b"upgrade one" in await asyncio.wait_for(reader.read(), 15)
    writer.close()
