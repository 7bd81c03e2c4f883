"""What a peer sends costs its link, or the entry that is wrong, and never the coordinator or broker that takes it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.link.handshake import DiallerLink
from lexicast.actors.link.link import Link
from lexicast.actors.link.sockets import dial
from lexicast.cluster.blocks import Mark, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import (
    ACK,
    BEAT,
    DELIVER,
    HEADS,
    MESSAGES,
    PUBLISH,
    REPLY,
    REQUEST,
    TAKEN,
    check_message,
)
from lexicast.cluster.protocol.requests import BROKER, CLIENT, COORDINATOR
from lexicast.cluster.protocol.shapes import check_request

from ..support.harness import GROUPS, WAIT_S, Cluster, eventually

TOPIC = b"fuzz/t"
GROUP = topic_group(TOPIC, GROUPS)


class Stranger:
    """Whoever holds the key and speaks as it likes."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        self.messages.append(message)

    def on_close(self, link: Link, error: Exception | None) -> None:
        """Of no interest."""

    def on_writable(self, link: Link) -> None:
        """Of no interest."""


async def speak(cluster: Cluster, address: str, role: str, messages: list[Any]) -> Stranger:
    """Send messages, over a new link whenever one was closed; returns once all were taken."""
    stranger, link = Stranger(), None
    info = await cluster.coordination.cluster()
    for message in messages:
        if link is None or link.closed:
            link = await dial(address, info.key, info.cluster_id, (role, "stranger", 1), lambda _: stranger)
            if role == "broker":
                await link.request("resume", {})
                await link.request("serve")
        link.send_packed(msgpack.packb(message))
        with suppress(LexicastError):
            await link.request("status")  # whatever was sent before it has been taken then, or the link is closed
    assert link is not None
    link.abort()
    return stranger


def entry_meta(topics: Any = (TOPIC,), **fields: Any) -> bytes:
    """An entry of one record, with some of its fields replaced."""
    run = Run(0, 0, 1, 0, 0, fields.pop("properties", None), -1, 1)
    meta = Meta(topics, (run,), (ProducerRun(b"p", 1, 1, 1),), (), (), ())
    return pack_meta(meta._replace(**fields))


BODY, LENGTHS = b"body", (4).to_bytes(4, "little")

# Each has been, or could have been, sequenced and then have failed in the store, or at every broker that it went to.
WRONG_ENTRIES = {
    "body that is text": (GROUP, entry_meta(), LENGTHS, "body"),
    "lengths that are text": (GROUP, entry_meta(), "\x04\0\0\0", BODY),
    "meta that is text": (GROUP, "meta", LENGTHS, BODY),
    "group that is text": ("0", entry_meta(), LENGTHS, BODY),
    "group that is true": (True, entry_meta(), LENGTHS, BODY),
    "group that nobody leads": (GROUPS, entry_meta(), LENGTHS, BODY),
    "columns too few": (GROUP, entry_meta(), LENGTHS),
    "no array": 7,
    "producer that is text": (GROUP, entry_meta(producers=(ProducerRun("p", 1, 1, 1),)), LENGTHS, BODY),  # type: ignore[arg-type]  # a wrong type is what it is about
    "sequence beyond 64 bits": (GROUP, entry_meta(producers=(ProducerRun(b"p", 1, 2**64 - 1, 1),)), LENGTHS, BODY),
    "packet id beyond 16 bits": (GROUP, entry_meta(marks=(Mark(0, b"u", 65_536),)), LENGTHS, BODY),
    "generation beyond 64 bits": (GROUP, entry_meta(marks=(Mark(0, b"u", 1, 2**64 - 1),)), LENGTHS, BODY),
    "dictionary that nobody has": (GROUP, entry_meta(dictionaries=(2**63,)), LENGTHS, BODY),
    "property too long for MQTT": (GROUP, entry_meta(properties={3: "x" * 65_536}), LENGTHS, BODY),
    "property with a NUL": (GROUP, entry_meta(properties={8: "a\0b"}), LENGTHS, BODY),
    "property of a wrong type": (GROUP, entry_meta(properties={9: "text"}), LENGTHS, BODY),
    "properties that are no map": (GROUP, entry_meta(properties=7), LENGTHS, BODY),
    "topic that is text": (GROUP, entry_meta(("fuzz/t",)), LENGTHS, BODY),
}


@pytest.mark.parametrize("wrong", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES.keys())
@pytest.mark.parametrize("role", ["client", "broker"])
async def test_a_wrong_entry_costs_itself_or_its_sender(tmp_path: Path, role: str, wrong: Any) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        members = await cluster.coordination.members(-1, 0)
        member = members.brokers["broker-0"] if role == "client" else members.coordinators["coordinator-0"]
        stranger = await speak(cluster, member.addresses[0], role, [(PUBLISH, 1, (wrong,))])
        assert [result for kind, *_, results in stranger.messages if kind == ACK for result in results] == [] or any(
            isinstance(results[0], str) for kind, *_, results in stranger.messages if kind == ACK
        ), "it was stored"
        await serves(cluster, broker)
        assert coordinator.server.led.failure is None


async def serves(cluster: Cluster, broker: BrokerServer) -> None:
    """The cluster takes and acknowledges a publication."""
    acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.engine.coordinators.publish(b"is/it/alive", 1, [b"yes"], "tester", acknowledged.set_result)
    async with asyncio.timeout(WAIT_S):
        assert not isinstance(await acknowledged, str)


def values() -> st.SearchStrategy[Any]:
    """Whatever msgpack carries."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=8)
        | st.binary(max_size=600)
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(leaves, inner, max_size=3), max_leaves=8
    )


LIKELY: list[Any] = [
    *(0, 1, GROUP, GROUPS, 2**63 - 1, True, None, "x"),
    *(b"", TOPIC, b"#", b"a/#/b", (TOPIC,), (b"#",), (GROUP,)),
    *({}, {0: 0}, {GROUP: 5}, {"slow": "drop"}, {"sample_records_per_s": "many"}),
    *(("cursor", {0: 0}), ("time", 0)),
]


def near() -> st.SearchStrategy[Any]:
    """Messages that are nearly right: of a known kind or method, with values that some field might take."""
    field = st.sampled_from(LIKELY) | values()
    requests = st.tuples(
        st.just(REQUEST),
        st.integers(0, 9),
        st.sampled_from([*COORDINATOR, *CLIENT, "none"]),
        st.lists(field, max_size=5),
    )
    sizes = st.sampled_from([LENGTHS, b"", b"\1", LENGTHS * 2])
    bodies = st.sampled_from([BODY, b"", "body", None])
    meta = st.builds(
        lambda run, producers, marks, origins, dictionaries: msgpack.packb(
            ([TOPIC], run, producers, marks, origins, dictionaries)
        ),
        st.lists(st.sampled_from([0, 1, 5, -1, None, {3: "text"}]), min_size=8, max_size=8),
        st.just([(b"p", 1, 1, 1)]) | values(),
        st.just([])
        | st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=600), st.integers(0, 70_000)))
        | values(),
        st.just([]) | values(),
        st.just([]) | values(),
    )
    entries = st.tuples(st.sampled_from([0, GROUP, 99, "0"]), meta | values(), sizes, bodies)
    publications = st.tuples(st.just(PUBLISH), st.integers(0, 9), st.lists(entries | values(), max_size=3))
    others = st.tuples(st.sampled_from([*MESSAGES, 99]), field) | st.tuples(st.sampled_from([*MESSAGES]), field, field)
    return requests | publications | others | values()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(near(), min_size=1, max_size=12), st.sampled_from(["client", "broker"]))
def test_arbitrary_messages_leave_coordinator_and_broker_serving(messages: list[Any], role: str) -> None:
    async def scene(folder: Path) -> None:
        defects: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
        async with Cluster(folder) as cluster:
            coordinator = await cluster.start_coordinator()
            broker = await cluster.start_broker("broker-0")
            members = await cluster.coordination.members(-1, 0)
            member = members.brokers["broker-0"] if role == "client" else members.coordinators["coordinator-0"]
            await speak(cluster, member.addresses[0], role, messages)
            await serves(cluster, broker)
            assert coordinator.server.led.failure is None
        assert not defects

    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        asyncio.run(scene(Path(folder)))


@settings(max_examples=300, deadline=None)
@given(values() | near())
def test_a_message_is_looked_at_whole_or_refused(message: Any) -> None:
    wire = msgpack.unpackb(msgpack.packb(message), use_list=False, strict_map_key=False)
    try:
        check_message(wire)
    except PeerError:
        return
    assert wire[0] in MESSAGES
    assert len(wire) == 1 + len(MESSAGES[wire[0]])


@pytest.mark.parametrize(
    "answer",
    [
        (REPLY, "one", None, {}),
        (REPLY, 1, 7, {}),
        (REPLY, 1, None, 7),
        (REPLY, 1, None, {"heads": {0: "x"}}),
        (REPLY, 1, None, {}),
        (ACK, 1, ((7,),)),
        (ACK, 1, "all"),
        (HEADS, {"0": (1, 1)}),
        (DELIVER, 0, (7,)),
        (TAKEN, None),
        (BEAT, 1),
    ],
)
async def test_a_coordinator_that_talks_nonsense_is_dialled_again(tmp_path: Path, answer: Any) -> None:
    """Nothing that waits for its answer waits for ever, and a broker goes on with the next link."""
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        pipeline = broker.engine.coordinators.pipelines["coordinator-0"]
        link = pipeline.link
        assert link is not None
        number = link._requests._next
        errors: list[Exception | None] = []

        def done(error: Exception | None, result: Any) -> None:
            errors.append(error)
            if error is None:
                result["heads"][0] += 1

        pipeline.call(done, "session_generation", 0, "x")
        if answer[0] == REPLY and answer[1] == 1:
            answer = (REPLY, number, *answer[2:])
        link.data_received(msgpack.packb(answer))
        await eventually(lambda: pipeline.link is not None and pipeline.link is not link, "another link")
        assert errors
        assert errors[-1] is not None
        await serves(cluster, broker)


async def test_every_request_that_is_served_has_its_arguments_looked_at(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        requests = (await cluster.start_coordinator()).server.requests
        broker = await cluster.start_broker("broker-0")
        assert requests.at_once.keys() | requests.later.keys() == COORDINATOR.keys()
        assert broker.mqtt.sessions.requests.keys() == BROKER.keys()
        link = DiallerLink(b"", "", ("", "", 0), lambda _: None)
        link.role = "client"
        session = broker.clients.opened(link)
        assert session is not None
        assert session.requests.keys() == CLIENT.keys()


def test_arguments_are_looked_at_one_by_one() -> None:
    check_request(COORDINATOR, "fetch", ({0: 5}, (b"a/#",), 1))
    cursors: list[Any] = [{0: -1}, {"0": 5}, {70_000: 1}, (0, 5), None]
    wrongs: list[tuple[Any, ...]] = [(cursor, (b"a",), 1) for cursor in cursors]
    for wrong in (*wrongs, ({0: 5}, (b"a/#/b",), 1), ({0: 5}, (b"a",), 0), ({},)):
        with pytest.raises(PeerError, match="fetch"):
            check_request(COORDINATOR, "fetch", wrong)


@pytest.mark.parametrize(
    "place",
    [
        (0, None, None, None),
        (-1, None, None),
        (0, "name", None),
        (0, b"\0" * 482, None),
        (0, None, (b"a/+", 1, 2)),
        (0, None, (b"", 1, 2)),
        (0, None, (b"a", -1, 2)),
        (0, None, (b"a", 1, 2**63)),
        (0, None, (b"a", 1)),
        (0, None, 70_000, 2**40),
    ],
)
def test_a_place_among_the_last_publications_is_one(place: Any) -> None:
    for each in ((0, b"\0a", (b"a", 1, 2)), (0, None, None), place):
        asked: dict[str, tuple[Any, ...]] = {
            "coordinator": ((b"a",), 1, {}, None, 5, each, 1),
            "client": ((b"a",), None, 5, 1, (((0, 7), None), ((1,), each)), 1, None),
        }
        for name, requests in (("coordinator", COORDINATOR), ("client", CLIENT)):
            with pytest.raises(PeerError, match="last") if each is place else nullcontext():
                check_request(requests, "last", asked[name])
