"""One story: a cluster, its clients and what goes wrong, all from a seed, so that a failure replays.

Real: coordinators (sequencer, committer, routing, requests, copies, homes of sessions), matchers, the coordination
server and its watch, pipelines, links and their heartbeats, engines, fan-out, subscribers, caches, MQTT connections and
sessions.
Simulated: clocks and processes (`virtual`: time passes when nothing is left to do), disks (`disks`: sometimes full
or slow, and a crash loses what was not committed), wires (`network`: delays, pieces, cuts, ways that are broken). No
sockets, no threads, no real time. What goes wrong is in `mishaps`.

`run(seed)` plays one story and raises `Violation` when a guarantee of docs/guarantees.md is broken:

    order       within a group every subscriber sees offsets ascend, and all see the same record at an offset; a session
                sees QoS 1 and 2 for the first time in that order
    once        nothing is stored twice but what MQTT sends again at QoS 1, and wills; a reader sees no position twice
    kept        nothing acknowledged at QoS 1 or 2 is lost: it is in the log, and every subscriber and session gets it
    committed   a publication of QoS 1 or 2 is never seen before it is durable in every member of its in-sync set
    fenced      a member that has promised an epoch never promises an older one, whatever it has been through
    time        within a group times never go back, whatever clocks do
    alike       in the end each group has its copies again, with the same records at the same places and times
    sessions    a session that was there is there, at whichever broker its client comes back
    wills       of a connection that was lost are out in the end, of one that stands they are not
    retained    a newcomer is given what is retained
    unwanted    nobody with a condition gets what it does not hold for (stories with content subscriptions and
                matchers, in some of which these form an overlay, seeds from 3,000,000 on; what such a subscriber is
                owed is judged by `conditions`)
    shares      of what a share is owed each comes to a member, once while nothing goes wrong and connections last, a
                topic in order to one member while members stay (seeds from 4,000,000 on; see `share_members`)
    alive       nobody ends by himself, nobody is sent what he cannot read

Not looked at: dictionaries and compression, bounded memory, retention and repair (a `MemoryStore` keeps everything and
has no bytes), when a will with a delay goes out, clocks that jump by more than an hour, and a lost registry.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lexicast.cluster.topics.names import matches

from ...broker.pipelines import pipeline as pipeline_module
from ...coordination import watching as watching_module
from ...coordinator import committer as committer_module
from ...loop import turns as turns_module
from ...mqtt.owning import owned_sessions as owned_sessions_module
from .auditor import Violation
from .breaks import Break
from .broker_processes import BrokerProcesses
from .clients import Clients
from .conditions import EVERYTHING, StoryCondition, drawn_condition
from .coordinator_processes import CoordinatorProcesses
from .disks import Gate
from .matcher_processes import MatcherProcesses
from .mishaps import Mishaps
from .mqtt_clients import LOOK_S, RETAINED_FILTER, SimMqttClient
from .scene import FILTERS, Scene
from .share_members import SimShare, SimShareMember, drawn_filter
from .transcript import Transcript
from .virtual import NOBODY

STORY_S = 3.0
HEAL_S = 120.0
RETAINED_S = 20.0
# What is cancelled may have something to end in its turn.
PUT_AWAY_ROUNDS = 5


class Story:
    """See the module's docstring. `lasted_s`: how long it took in its own time."""

    def __init__(self, seed: int, transcript: Transcript, broken: Break | None) -> None:
        self.scene = Scene(seed, transcript)
        self.coordinators = CoordinatorProcesses(self.scene, broken.gate if broken else Gate)
        self.auditor = self.coordinators.auditor
        self.brokers = BrokerProcesses(self.scene)
        self.clients = Clients(self.scene, self.brokers, self.auditor)
        self.matchers = MatcherProcesses(self.scene, self.coordinators) if self.scene.content else None
        self.brokers.matchers = self.matchers
        self.mishaps = Mishaps(self.scene, self.coordinators, self.brokers, self.matchers)
        self.sessions: list[SimMqttClient] = []
        self.shares: list[SimShare] = []
        self.lasted_s = 0.0

    async def play(self) -> None:
        """The whole story. Raises Violation."""
        scene, choose = self.scene, self.scene.choose

        def when() -> float:
            return choose.random() * STORY_S

        self.coordinators.start_coordination()
        for name in scene.coordinators:
            self.coordinators.open(name)
        while len(self.coordinators.servers) < len(scene.coordinators):  # noqa: ASYNC110 - waiting costs no time here
            await asyncio.sleep(0.01)
        begin_s = scene.loop.time()
        for i in range(choose.randint(1, 3)):
            self.brokers.open(f"broker-{i}", self.coordinators.coordination.states())
        if self.matchers is not None:
            self._with_matchers(self.matchers, begin_s)
        for i in range(choose.randint(10, 40)):
            scene.at(begin_s + when(), self.clients.publish, b"once-%d" % i)
        for i in range(choose.randint(0, 6)):
            scene.at(begin_s + when(), self.clients.publish_marked, b"marked-%d" % i, i + 1)
        for producer in (b"p", b"q"):
            sequence = 1
            for at in sorted(when() for _ in range(choose.randint(0, 10))):
                count = choose.randint(1, 3)
                scene.at(begin_s + at, self.clients.publish_again, producer, sequence, count)
                sequence += count
        for i in range(choose.randint(1, 5)):
            begins_s, what = when() * 0.7, choose.choice(FILTERS)
            scene.later(begins_s, self.clients.read, f"reader-{i}", what, begin_s + STORY_S, self._condition())
        self._with_sessions(begin_s)
        if scene.shares:
            self._with_shares(begin_s)
        for _ in range(choose.randint(0, 8)):
            scene.at(begin_s + when(), self.mishaps.happen)
        await asyncio.sleep(STORY_S + 1.0)
        await self._healed()

    def _condition(self) -> StoryCondition:
        """A reader's: where all who share a filter at a broker have one, matchers are asked."""
        dice = self.scene.content_dice
        return drawn_condition(dice) if self.scene.content and dice.random() < 0.75 else EVERYTHING

    def _with_matchers(self, matchers: MatcherProcesses, begin_s: float) -> None:
        """Content subscribers and publications beside those that there are."""
        scene, dice = self.scene, self.scene.content_dice
        for i in range(dice.choice([1, 2, 2, 3])):
            scene.at(begin_s + dice.choice([0.0, dice.random()]), matchers.open, f"matcher-{i}")
        if scene.overlay_beyond is not None:
            for i in range(3, 3 + scene.overlay_dice.randint(1, 4)):
                scene.at(begin_s + scene.overlay_dice.random(), matchers.open, f"matcher-{i}")
        scene.at(begin_s, matchers.plan)
        for i in range(dice.randint(0, 40)):
            scene.at(begin_s + dice.random() * STORY_S, self.clients.publish, b"more-%d" % i)
        for i in range(dice.randint(2, 12)):
            what = f"chooser-{i}", dice.choice(FILTERS), begin_s + STORY_S, drawn_condition(dice)
            scene.later(dice.random() * STORY_S * 0.7, self.clients.read, *what)

    def _with_sessions(self, begin_s: float) -> None:
        """MQTT clients, in every other story."""
        scene, choose = self.scene, self.scene.choose
        process = scene.new_process("clients", "elsewhere")
        for i in range(choose.choice([0, 0, 1, 2, 3])):
            client = SimMqttClient(scene, self.brokers, self.auditor, process, f"session-{i}")
            self.sessions.append(client)
            scene.later(choose.random() * 0.5, client.live, begin_s + STORY_S)
            for n in range(choose.randint(0, 12)):
                scene.at(begin_s + choose.random() * STORY_S, client.publish, b"mqtt-%d-%d" % (i, n))

    def _with_shares(self, begin_s: float) -> None:
        """One or two shares, whose members publish too."""
        scene, dice = self.scene, self.scene.share_dice
        process = scene.new_process("members", "elsewhere")
        for number in range(dice.choice([1, 1, 2])):
            share = SimShare(scene, self.auditor, b"share-%d" % number, drawn_filter(scene), self._epochs)
            self.shares.append(share)
            for i in range(dice.choice([1, 2, 3, 4])):
                name = f"member-{number}-{i}"
                member = SimShareMember(scene, self.brokers, self.auditor, process, name, share)
                self.sessions.append(member)
                # Some stay until the end.
                until_s = begin_s + dice.choice([0.0, STORY_S, STORY_S])
                scene.later(dice.random() * dice.choice([0.5, 2.0]), member.live, until_s)
                for n in range(dice.randint(0, 30)):
                    scene.at(begin_s + dice.random() * STORY_S, member.publish, b"share-%d-%d-%d" % (number, i, n))

    def _epochs(self) -> dict[int, int]:
        return {group: state.epoch for group, state in self.coordinators.coordination.states().items()}

    async def _healed(self) -> None:
        """Nothing disturbs any more: everything has to come right. Raises Violation."""
        auditor, loop = self.auditor, self.scene.loop
        self.scene.transcript.say("story", "nothing disturbs any more")
        until = loop.time() + HEAL_S
        while (lacking := self.lacking()) and not auditor.broken and not loop.errors:
            if loop.time() > until:
                auditor.found(f"kept: {lacking}")
                break
            await asyncio.sleep(0.5)
        for share in self.shares:
            if not auditor.broken:
                await share.share_calmly()
        if self.sessions and not auditor.broken:
            await self._see_retained()
        auditor.check_times()
        for session in self.sessions:
            auditor.check_order(session.name, session.seen)
        for error in loop.errors:
            auditor.found(f"alive: {error}")
        self.lasted_s = loop.time()
        if auditor.broken:
            raise Violation(auditor.broken[0])

    async def _see_retained(self) -> None:
        """Somebody who has not been there before is given what is retained."""
        client = SimMqttClient(self.scene, self.brokers, self.auditor, self.sessions[0].process, "newcomer")
        client.filter, client.condition = RETAINED_FILTER, EVERYTHING
        self.scene.begin(client.live, 0.0)
        for _ in range(round(RETAINED_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            if client.retained == self.auditor.retained():
                return
        wanted = self.auditor.retained()
        self.auditor.found(f"retained: a newcomer gets {client.retained}, what is retained is {wanted}")

    def lacking(self) -> str:
        """What is still to come."""
        lost = self.auditor.lost()
        if lost:
            return f"{lost} were acknowledged and are not stored"
        for engine in self.brokers.engines.values():
            for pipeline in engine.coordinators.pipelines.values():
                if pipeline.unanswered_bytes:
                    return f"{engine.name} has {pipeline.unanswered_bytes} bytes unanswered at {pipeline.member.name}"
        stores = self.coordinators.stores
        for reader in self.clients.readers:
            wanted = {
                (group, offset)
                for store in stores.values()
                for group, offset, topic, _, payload in store.records()
                if group in reader.since
                and offset >= reader.since[group]
                and matches(reader.filter, topic)
                and reader.condition.wants(topic, payload)
            }
            if not wanted <= reader.places:
                missing = sorted(wanted - reader.places)
                return f"{reader.name} ({reader.filter!r} since {reader.since}) lacks {missing[:3]} of {len(missing)}"
        for session in self.sessions:
            if lacks := session.lacking():
                return lacks
        for share in self.shares:
            if lacks := share.lacking():
                return lacks
        for group, state in self.coordinators.coordination.states().items():
            if len(state.in_sync) < self.scene.copies:
                return f"group {group} has {len(state.in_sync)} copies"
            if len({tuple(stores[name].publications(group)) for name in state.in_sync}) > 1:
                return f"the copies of group {group} at {state.in_sync} are not alike"
        return ""


class SeededSecrets:
    """In the place of `secrets`: the same bytes each time."""

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(f"{seed}/secrets")

    def token_bytes(self, count: int) -> bytes:
        """See `secrets.token_bytes`."""
        return self._choose.randbytes(count)


@contextmanager
def in_the_place_of(replaced: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes of modules (module, name, value) for a while."""
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def run(seed: int, broken: Break | None = None, transcript: Transcript | None = None) -> Story:
    """Play the story of `seed`, with something broken on purpose or without. Raises Violation, which names the seed."""
    transcript = transcript or Transcript(keeps=False)
    story = Story(seed, transcript, broken)
    loop, network = story.scene.loop, story.scene.network
    substitutes = [
        (pipeline_module, "dial_any", network.dial),
        (watching_module, "dial_any", network.dial),
        (committer_module, "monotonic", loop.time),
        (turns_module, "now_s", loop.time),
        (owned_sessions_module, "secrets", SeededSecrets(seed)),
        # What only measures the event loop.
        (turns_module.LoopWatch, "PERIOD_S", HEAL_S),
        *(story.matchers.substitutes() if story.matchers is not None else ()),
        *(broken.substitutes if broken is not None else ()),
    ]
    with transcript.listening(), in_the_place_of(substitutes):
        try:
            loop.run_until_complete(loop.create_task(story.play(), context=NOBODY.copy()))
        except Violation as violation:
            raise Violation(f"seed {seed}: {violation}") from None
        finally:
            _put_away(story)
    return story


def _put_away(story: Story) -> None:
    """End everything that runs, also in processes that are dead or stopped."""
    loop = story.scene.loop
    for process in story.scene.processes:
        process.alive = True
        loop.call_soon(process.go_on, context=NOBODY)
    for _ in range(PUT_AWAY_ROUNDS):
        running = [task for task in loop.tasks if not task.done()]
        for task in running:
            loop.call_soon(task.cancel, context=NOBODY)
        if running:
            loop.run_until_complete(asyncio.sleep(1.0))
    loop.close()
