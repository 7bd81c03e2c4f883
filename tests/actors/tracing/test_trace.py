"""`lexicast trace` against a real cluster of two coordinators and two brokers, over real links."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.tracing import broker_traces, group_traces
from lexicast.actors.tracing.asking import find_publication, send_marked, whereabouts
from lexicast.actors.tracing.broker_traces import TracedSubscriber
from lexicast.actors.tracing.clocks import SAME_CLOCK, ClockOffset, clock_offset
from lexicast.actors.tracing.trace_report import hop_lines, place_lines
from lexicast.cluster.errors import LimitError, UsageError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.requests import TRACE_MARK

from ...support.harness import GROUPS, Cluster, eventually
from ...support.mqtt_harness import Message, Raw, close_clients

BOTH = ("coordinator-0", "coordinator-1")
TOPIC = "plant/7/state"
GROUP = topic_group(TOPIC.encode(), GROUPS)


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Client]:
    """An operator's client, which knows all brokers and is served by one of them."""
    info, members = await cluster.coordination.cluster(), await cluster.coordination.members(-1, 0)

    async def resolve() -> list[Endpoint]:
        return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

    async with asyncio.timeout(90), Client(resolve, give_up_s=30) as bus:
        yield bus


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Cluster, list[BrokerServer]]]:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        for name in BOTH:
            await cluster.start_coordinator(name)
        yield cluster, [await cluster.start_broker(f"broker-{number}") for number in range(2)]
        await close_clients()


async def copied(cluster: Cluster) -> None:
    """Both coordinators count in the topic's group."""

    def members() -> list[str]:
        return sorted(cluster.coordination.status()["group_states"][GROUP][2])

    await eventually(lambda: members() == [*BOTH], "both copies")


def traced(broker: BrokerServer) -> bool:
    """Whether a trace's subscriber waits there."""
    fan = broker.engine.subscriptions.fan(TOPIC.encode())
    return any([isinstance(subscriber, TracedSubscriber) for subscriber, _ in fan])


def watched(cluster: Cluster) -> int:
    """How many groups are watched for traces."""
    return sum([each.server.requests.traces.watching for each in cluster.coordinators.values()])


# -- where a publication is


async def test_the_last_publication_of_a_topic_is_found_with_its_copies_and_subscribers(
    running: tuple[Cluster, list[BrokerServer]],
) -> None:
    cluster, brokers = running
    await copied(cluster)
    device = await Raw.connect(brokers[1].mqtt.port, client_id="dash")
    await device.subscribe("plant/#", qos=1)
    async with connected(cluster) as bus:
        await bus.publish(TOPIC, b"before")
        position = await bus.publish(TOPIC, b"on", qos=1)
        for payload in (b"before", b"on"):
            assert (await device.expect(Message)).payload == payload
        message = await find_publication(bus, TOPIC)
        assert (message.position, message.payload) == (position, b"on")
        assert (await find_publication(bus, str(position))).payload == b"on"
        place = await whereabouts(bus, message)
        assert place["position"] == str(position)
        group = place["group"]
        assert (group["committed"], group["delivered"], sorted(group["in_sync"])) == (True, True, [*BOTH])
        assert group["copies"] == dict.fromkeys(BOTH, True)
        assert group["coordinator"] in BOTH
        away, here = place["brokers"]["broker-0"], place["brokers"]["broker-1"]
        assert (away["subscribed"], away["subscribers"]["count"]) == (False, 0)
        assert (here["subscribed"], here["sent"], here["subscribers"]["count"]) == (True, True, 1)
        assert here["subscribers"]["waiting"] == 0
        assert place["unreached"] == {}
        text = "\n".join(place_lines(place))
        assert "2 of 2 copies that count have it" in text
        assert "broker-0   no subscription" in text
        assert "broker-1   has been sent it; 1 subscriber" in text
        assert "dash: given it" in text


async def test_what_a_client_has_not_acknowledged_and_what_it_has_yet_to_get_is_told(
    running: tuple[Cluster, list[BrokerServer]],
) -> None:
    cluster, brokers = running
    device = await Raw.connect(brokers[0].mqtt.port, client_id="slow", _33=1)
    device.answers = False
    await device.subscribe("plant/#", qos=1)
    async with connected(cluster) as bus:
        first, second = [await bus.publish(TOPIC, payload) for payload in (b"1", b"2")]
        await device.expect(Message)

        async def state(position: object) -> str:
            place = await whereabouts(bus, await find_publication(bus, str(position)))
            found: str = place["brokers"]["broker-0"]["subscribers"]["clients"]["slow"]
            return found

        assert await state(first) == "sent"
        assert await state(second) == "waits"


async def test_what_has_become_of_it_in_a_share_is_told(running: tuple[Cluster, list[BrokerServer]]) -> None:
    cluster, _ = running
    async with connected(cluster) as bus, bus.subscribe("plant/#", group="workers") as work:
        position = await bus.publish(TOPIC, b"job")
        await anext(work)
        held = await whereabouts(bus, await find_publication(bus, str(position)))
        assert held["shares"] == {"workers/plant/#": bus.broker_name}
        await bus.publish(TOPIC, b"next")
        await anext(work)  # the one before is done with
        async with asyncio.timeout(60):
            while True:
                place = await whereabouts(bus, await find_publication(bus, str(position)))
                if place["shares"] == {"workers/plant/#": "done"}:
                    break


async def test_what_is_not_there_is_told(running: tuple[Cluster, list[BrokerServer]]) -> None:
    cluster, _ = running
    async with connected(cluster) as bus:
        with pytest.raises(UsageError, match="nothing was published to 'plant/8'"):
            await find_publication(bus, "plant/8")
        position = await bus.publish(TOPIC, b"on")
        for wrong in (position._replace(offset=position.offset + 1), position._replace(epoch=position.epoch + 1)):
            with pytest.raises(UsageError, match="no publication is at"):
                await find_publication(bus, str(wrong))
        with pytest.raises(UsageError, match="wildcard"):
            await find_publication(bus, "plant/#")


# -- a marked one


async def test_the_hops_of_a_marked_publication_are_timed_from_here_to_a_subscriber_of_each_broker(
    running: tuple[Cluster, list[BrokerServer]],
) -> None:
    cluster, brokers = running
    await copied(cluster)
    device = await Raw.connect(brokers[1].mqtt.port, version=5)
    await device.subscribe(TOPIC, qos=1)
    async with connected(cluster) as bus:
        sent = await send_marked(bus, TOPIC, None)
        own = bus.broker_name
        assert sent["missing"] == {}
        when = {(hop["what"], hop["at"]): hop["after_us"] for hop in sent["hops"]}
        leader = next(at for what, at in when if what == "placed")
        assert when.keys() == {
            ("sent", ""),
            ("received", own),
            ("placed", leader),
            *[("durable", name) for name in BOTH],
            ("committed", leader),
            *[("given", f"broker-{number}") for number in range(2)],
            *[("arrived", f"broker-{number}") for number in range(2)],
            ("acknowledged", own),
            ("answered", own),
        }
        # One machine, one clock: each step is after the one that it follows from.
        ways = [
            ("sent", ""),
            ("received", own),
            ("placed", leader),
            ("durable", leader),
            ("committed", leader),
        ]
        assert [when[step] for step in ways] == sorted([when[step] for step in ways])
        assert when["committed", leader] == max(when["durable", name] for name in BOTH)
        for name in ("broker-0", "broker-1"):
            assert when["committed", leader] <= when["given", name] <= when["arrived", name]
        assert when["received", own] <= when["acknowledged", own] <= when["answered", own]
        # It is a publication as any other.
        got = await device.expect(Message)
        assert got.payload == b'{"lexicast-trace": "%s"}' % sent["mark"].encode()
        stored = await find_publication(bus, sent["position"])
        assert stored.properties is not None
        assert stored.properties.get(TRACE_MARK) == sent["mark"]
        lines = "\n".join(hop_lines(sent))
        assert "with a subscriber of broker-1" in lines
        assert "acknowledged here" in lines
    # Nothing is left of it.
    await eventually(lambda: not any(map(traced, brokers)))
    assert watched(cluster) == 0


async def test_a_broker_that_does_not_deliver_is_named(
    running: tuple[Cluster, list[BrokerServer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, brokers = running
    take, deaf = TracedSubscriber.write, list[object]()

    def write(self: TracedSubscriber, data: bytes) -> None:
        """The other broker's gets nothing, and its time is over."""
        if self.broker in deaf:
            self.seen.set_exception(TimeoutError())
        else:
            take(self, data)

    monkeypatch.setattr(TracedSubscriber, "write", write)
    async with connected(cluster) as bus:
        (other,) = [broker for broker in brokers if broker.name != bus.broker_name]
        deaf.append(other.engine.subscriptions)
        sent = await send_marked(bus, TOPIC, b"on")
        assert list(sent["missing"]) == [other.name]
        assert "it has not been delivered within" in sent["missing"][other.name]
        assert ("arrived", bus.broker_name) in [(hop["what"], hop["at"]) for hop in sent["hops"]]
        assert any(f"{other.name}: " in line for line in hop_lines(sent))


async def test_traces_are_few_and_end(
    running: tuple[Cluster, list[BrokerServer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, brokers = running
    async with connected(cluster) as bus:
        ask = bus.internals.request
        for number in range(broker_traces.TRACES_MAX):
            await ask("trace_begin", f"mark-{number}", TOPIC.encode(), True)
        with pytest.raises(LimitError, match="4 traces at a time"):
            await ask("trace_begin", "one-more", TOPIC.encode(), True)
        with pytest.raises(UsageError, match="there is no trace 'other'"):
            await ask("trace_publish", "other", b"")
        assert watched(cluster) == broker_traces.TRACES_MAX
        assert any(map(traced, brokers))
    await eventually(lambda: not any(map(traced, brokers)))  # the client has gone
    monkeypatch.setattr(group_traces, "LASTS_S", 0.0)
    await eventually(lambda: not watched(cluster))


async def test_few_watches_look_each_turn(
    running: tuple[Cluster, list[BrokerServer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes turns where there would be none is one watch at a time, a tenth of the time."""
    cluster, _ = running
    monkeypatch.setattr(group_traces, "RESTS", 1e9)
    (coordinator,) = [each.server for each in cluster.coordinators.values() if GROUP in each.server.led.served]
    peer, found = coordinator.routing.peers["broker-0"], coordinator.requests.traces

    def each_turn() -> int:
        return sum([watch.each_turn for watch, _ in found._watches.values()])

    first, _, _ = [found.begin(peer, GROUP)["watch"] for _ in range(3)]
    assert each_turn() == 1
    found.end(peer, GROUP, first, 0)
    await eventually(lambda: found._each_turn_from_s < math.inf)
    while found.watching < group_traces.WATCHES_MAX:
        found.begin(peer, GROUP)
    assert each_turn() == 0
    with pytest.raises(LimitError, match="8 traces are under way"):
        found.begin(peer, GROUP)
    with pytest.raises(UsageError, match="not watched"):
        found.end(peer, GROUP, 99, 0)


# -- clocks


@given(
    st.integers(-(10**9), 10**9),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5)), min_size=1),
)
def test_another_clock_is_known_as_well_as_the_quickest_answer_says(
    ahead_us: int, asked: list[tuple[int, int, int]]
) -> None:
    """`asked`: when, and how long the question and the answer take."""
    told = [(at, at + there + ahead_us, at + there + back) for at, there, back in asked]
    found = clock_offset(told)
    assert abs(found.ahead_us - ahead_us) <= 2 * found.uncertain_us + 1
    assert found.uncertain_us <= min(there + back for _, there, back in asked) // 2 + 1


def test_a_difference_that_the_way_explains_is_none() -> None:
    assert clock_offset([(1_000, 1_450, 2_000)]) == ClockOffset(0, 500)
    assert clock_offset([(1_000, 9_000, 2_000), (3_000, 10_600, 3_200)]) == ClockOffset(7_500, 100)
    assert ClockOffset(7_500, 100).ours(10_600) == 3_100
    assert ClockOffset(7_500, 100).beyond(ClockOffset(-500, 20)) == ClockOffset(7_000, 120)
    assert SAME_CLOCK.ours(5) == 5
