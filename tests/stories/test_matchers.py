"""Matchers on real links: brokers get what their subscribers may want, and everybody gets what is owed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.broker.matching import cell_reports, far_matchers
from lexicast.actors.coordinator.matching import asked_blocks
from lexicast.actors.matcher import server as matcher_server
from lexicast.actors.testing.simulator.matcher_processes import any_cell_is_hot
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.hpartition import planning
from lexicast.cluster.skipcloud.identifiers import CloudShape
from lexicast.cluster.topics.names import matches

from ..support.harness import GROUPS, Cluster, Stream, eventually

if TYPE_CHECKING:
    from lexicast.actors.broker.server import BrokerServer
    from lexicast.actors.matcher.server import MatcherServer

MATCHED = Config().replaced(node__matchers=1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A coordinator, and whoever the test starts."""
    async with Cluster(tmp_path, config=MATCHED) as cluster:
        await cluster.start_coordinator()
        yield cluster


async def subscribed(
    broker: BrokerServer, topic_filter: bytes, where: str = "", start: dict[int, int] | None = None
) -> Stream:
    """A new subscriber."""
    stream = Stream(broker.engine)
    grant = Grant(where=predicate(where)) if where else Grant()
    await broker.engine.subscriptions.subscribe(stream, {topic_filter: grant}, start=start)
    return stream


def flight(delay: int, **more: object) -> bytes:
    """A payload."""
    return json.dumps({"delay": delay, **more}).encode()


async def publish(broker: BrokerServer, topic: bytes, payloads: list[bytes], qos: int = 1) -> None:
    """Publish, and wait for the acknowledgement."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    broker.engine.coordinators.publish(topic, qos, payloads, "tester", done.set_result)
    await done


def withheld(cluster: Cluster) -> int:
    """Records that brokers were spared."""
    return sum([c.server.status()["matching"]["withheld_records"] for c in cluster.coordinators.values()])


async def choosing(cluster: Cluster, filters: int) -> None:
    """Return when so many filters choose, as coordinators and matchers know it."""
    servers = [coordinator.server for coordinator in cluster.coordinators.values()]
    await eventually(
        lambda: all([s.status()["matching"]["filters"] == filters for s in servers]), f"{filters} filters that choose"
    )


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_broker_gets_what_its_subscribers_may_want_and_nothing_else(cluster: Cluster, qos: int) -> None:
    near, far = await cluster.start_broker("broker-0"), await cluster.start_broker("broker-1")
    await cluster.start_matcher()
    late = await subscribed(near, b"flights/#", "delay > 30")
    early = await subscribed(far, b"flights/#", "delay < -5")
    await choosing(cluster, 2)
    for delay in range(-10, 50):
        await publish(near, b"flights/UA", [flight(delay)], qos)
    assert [json.loads(p)["delay"] for p in (await late.arrived(19), late.payloads())[1]] == list(range(31, 50))
    assert [json.loads(p)["delay"] for p in (await early.arrived(5), early.payloads())[1]] == list(range(-10, -5))
    # All but what they want, unless a matcher was late.
    await eventually(lambda: 0 < withheld(cluster) <= 2 * 60 - 19 - 5, "what nobody wants is not sent")


async def test_a_first_subscriber_without_a_condition_gets_everything_from_its_suback_on(cluster: Cluster) -> None:
    broker = await cluster.start_broker("broker-0")
    await cluster.start_matcher()
    some = await subscribed(broker, b"flights/#", "delay > 100")
    await choosing(cluster, 1)
    await publish(broker, b"flights/UA", [flight(delay) for delay in range(10)], 0)
    every = await subscribed(broker, b"flights/#")
    for delay in range(10, 20):
        await publish(broker, b"flights/UA", [flight(delay)], 0)
    await every.arrived(10)
    await choosing(cluster, 0)
    assert [json.loads(p)["delay"] for p in every.payloads()] == list(range(10, 20))
    assert not some.received
    broker.engine.subscriptions.leave(every)
    await choosing(cluster, 1)


async def test_what_a_new_condition_asks_is_known_before_its_subscription_counts(cluster: Cluster) -> None:
    broker = await cluster.start_broker("broker-0")
    await cluster.start_matcher()
    await subscribed(broker, b"flights/#", "delay > 100")
    await choosing(cluster, 1)
    for number in range(20):
        # A field that nobody asked for before.
        stream = await subscribed(broker, b"flights/#", f"tail{number} = 'N{number}'")
        await publish(broker, b"flights/UA", [flight(0, **{f"tail{number}": f"N{number}"})], 0)
        await stream.arrived(1)


async def test_a_resumed_subscription_gets_what_it_missed(cluster: Cluster) -> None:
    """What others' conditions left out of this broker's cache is in the store."""
    broker = await cluster.start_broker("broker-0")
    await cluster.start_matcher()
    first = await subscribed(broker, b"flights/#", "delay < 5")
    start = broker.engine.subscriptions.cursor_of(first)
    await choosing(cluster, 1)
    for delay in range(20):
        await publish(broker, b"flights/UA", [flight(delay)])
    await eventually(lambda: withheld(cluster) > 0)
    for where, count in (("delay >= 15", 5), ("delay > 3 AND delay < 8", 4)):
        again = await subscribed(broker, b"flights/#", where, start)
        assert len(await again.arrived(count)) == count
    assert len((await subscribed(broker, b"flights/#", start=start)).subscriptions) == 1


async def test_who_catches_up_takes_nothing_from_who_waits_for_matchers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits lies before the place from which on all comes live: behind that answer it was taken for a repeat."""
    monkeypatch.setattr(asked_blocks, "ANSWER_S", 0.3)
    broker = await cluster.start_broker("broker-0")
    matcher = await cluster.start_matcher()
    await publish(broker, b"flights/UA", [flight(5)])  # there is a past
    waits = await subscribed(broker, b"flights/#", "delay > 10")
    late = Stream(broker.engine)
    late.block()
    grant = Grant(where=predicate("delay > 15"))
    await broker.engine.subscriptions.subscribe(late, {b"flights/#": grant}, start=dict.fromkeys(range(GROUPS), 0))
    await choosing(cluster, 1)
    monkeypatch.setattr(matcher, "ask", lambda *_: None)  # it says nothing
    await publish(broker, b"flights/UA", [flight(20)])
    late.give_room(1 << 60)
    assert len(await late.arrived(1)) == 1
    assert len(await waits.arrived(1)) == 1


class Passenger:
    """A subscriber that comes and goes, and what it has to get."""

    def __init__(self, stream: Stream, broker: BrokerServer, where: str, topic_filter: bytes) -> None:
        self.stream, self.broker, self.topic_filter = stream, broker, topic_filter
        self._where = predicate(where) if where else None
        self.owed: list[bytes] = []
        self.gone = False

    def has_all(self) -> bool:
        """What it is owed; it may have got something before that too."""
        if len(self.stream.received) < len(self.owed):
            return False
        got, owed = self.by_topic(self.stream.payloads()), self.by_topic(self.owed)
        return all([got.get(carrier, [])[-len(numbers) :] == numbers for carrier, numbers in owed.items()])

    @staticmethod
    def by_topic(payloads: list[bytes]) -> dict[str, list[int]]:
        """What is in order: the publications of a topic."""
        found: dict[str, list[int]] = {}
        for payload in payloads:
            fields = json.loads(payload)
            found.setdefault(fields["carrier"], []).append(fields["number"])
        return found

    def check(self) -> None:
        """Everything that it is owed, once, in order."""
        got = self.by_topic(self.stream.payloads())
        for carrier, owed in self.by_topic(self.owed).items():
            # It may begin a little before it has subscribed, where the broker is told late of what it is spared.
            assert got[carrier][-len(owed) :] == owed
            assert got[carrier] == sorted(set(got[carrier]))

    def published(self, topic: bytes, payload: bytes) -> None:
        """One more publication that it may be owed."""
        if self.gone or not matches(self.topic_filter, topic):
            return
        if self._where is None or self._where.matches(ContentRecord(topic, payload, FieldReader(self._where.names))):
            self.owed.append(payload)


CONDITIONS = [
    "",
    "delay > 40",
    "delay < 4",
    "delay = 7 OR delay = 9",
    "carrier = 'UA'",
    "carrier LIKE '%A' AND delay > 20",
]
FILTERS = [b"flights/#", b"flights/UA", b"flights/+"]


def hears_late(matcher: MatcherServer, late_s: float) -> None:
    """What brokers tell it comes so late; what coordinators ask comes at once."""
    told, loop = matcher.conditions.told, asyncio.get_running_loop()

    def later(broker: str, version: int, number: int, changes: Sequence[tuple[bool, bytes, str]]) -> None:
        known = matcher.conditions.brokers[broker]

        def hear() -> None:
            if matcher.conditions.brokers.get(broker) is known:
                told(broker, version, number, changes)
                matcher.names_changed()

        loop.call_later(late_s, hear)

    matcher.conditions.told = later  # type: ignore[assignment, method-assign]  # the network in between


class Airport:
    """Subscribers at two brokers, publishers at both, matchers that come and go, links that break."""

    def __init__(self, cluster: Cluster, brokers: list[BrokerServer], dice: random.Random) -> None:
        self.cluster, self.brokers, self.dice = cluster, brokers, dice
        self.passengers: list[Passenger] = []
        self.number = 0
        self.acts = [*[self.comes] * 4, *[self.goes] * 3, *[self.publishes] * 60]
        self.acts += [self.matcher_dies, self.matcher_comes, self.matcher_comes, *[self.cells_change] * 4]

    async def comes(self) -> None:
        """A subscriber comes."""
        dice = self.dice
        broker, where, topic_filter = dice.choice(self.brokers), dice.choice(CONDITIONS), dice.choice(FILTERS)
        stream = await subscribed(broker, topic_filter, where)
        self.passengers.append(Passenger(stream, broker, where, topic_filter))

    async def publishes(self) -> None:
        """Some publications of one topic: all that are there are owed them."""
        topic, payloads = b"flights/" + self.dice.choice([b"UA", b"AA", b"DL"]), []
        for _ in range(self.dice.choice([1, 1, 1, 5])):
            self.number += 1
            payloads.append(flight(self.dice.randrange(50), carrier=topic[8:].decode(), number=self.number))
        for passenger in self.passengers:
            for payload in payloads:
                passenger.published(topic, payload)
        await publish(self.dice.choice(self.brokers), topic, payloads, self.dice.choice([0, 1]))

    async def goes(self) -> None:
        """A subscriber goes, when it has what it is owed."""
        there = [passenger for passenger in self.passengers if not passenger.gone]
        if len(there) > 3:
            passenger = self.dice.choice(there)
            await eventually(passenger.has_all, "what is owed")
            passenger.gone = True
            passenger.broker.engine.subscriptions.leave(passenger.stream)

    async def matcher_dies(self) -> None:
        """What it was asked is asked elsewhere."""
        if self.cluster.matchers:
            await self.cluster.stop_matcher(self.dice.choice(list(self.cluster.matchers)))

    async def matcher_comes(self) -> None:
        """At most four, and some hear late of what brokers tell them."""
        if absent := {f"matcher-{i}" for i in range(4)}.difference(self.cluster.matchers):
            matcher = await self.cluster.start_matcher(self.dice.choice(sorted(absent)))
            if self.dice.random() < 0.5:
                hears_late(matcher, self.dice.choice([0.005, 0.03, 0.2]))

    async def link_breaks(self) -> None:
        """Between a broker and a coordinator."""
        pipeline = self.dice.choice(list(self.dice.choice(self.brokers).engine.coordinators.pipelines.values()))
        if pipeline.link is not None:
            pipeline.link.abort()
            await pipeline.wait_linked()

    async def cells_change(self) -> None:
        """Another step of the cells' plan."""
        self.cluster.coordination.plan_cells()

    async def acts_once(self) -> None:
        """Something happens."""
        await self.dice.choice(self.acts)()
        if self.dice.random() < 0.2:
            await asyncio.sleep(self.dice.choice([0, 0.001, 0.06]))
        if self.dice.random() < 0.004:
            await self.link_breaks()


@pytest.mark.parametrize(
    ("seed", "beyond"), [(0, None), (1, None), (2, None), (3, None), (4, 0), (5, 0), (6, 1), (7, 2)]
)
async def test_whoever_comes_and_goes_gets_what_is_owed(
    tmp_path: Path, seed: int, beyond: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cells, from the second condition on, which get copies or are split without a reason; and with matchers that
    form an overlay beyond so many."""
    monkeypatch.setattr(matcher_server, "CYCLE_S", 0.02)
    monkeypatch.setattr(matcher_server, "LEAVES_S", 0.05)
    monkeypatch.setattr(far_matchers, "AGAIN_S", 0.05)
    monkeypatch.setattr(planning, "CONDITIONS_MIN", 2)
    monkeypatch.setattr(planning, "EVENTS_MIN", 10)
    monkeypatch.setattr(cell_reports, "LOOK_S", 0.002)
    monkeypatch.setattr(cell_reports, "REPORT_S", 0.02)
    monkeypatch.setattr(planning, "hot_cells", any_cell_is_hot(random.Random(seed)))
    names = ("coordinator-0", "coordinator-1")
    async with Cluster(tmp_path, config=MATCHED, coordinators=names) as cluster:
        if beyond is not None:
            cluster.overlay, cluster.overlay_beyond = CloudShape(2, 2, contacts_a_child=1), beyond
        await asyncio.gather(*map(cluster.start_coordinator, names))
        brokers = [await cluster.start_broker(f"broker-{i}") for i in range(2)]
        await cluster.start_matcher("matcher-0")
        airport = Airport(cluster, brokers, random.Random(seed))
        await airport.comes()
        for _ in range(700):
            await airport.acts_once()
        for passenger in airport.passengers:
            await eventually(passenger.has_all, "what is owed")
        await asyncio.sleep(0.1)  # what should not come
        for passenger in airport.passengers:
            passenger.check()
