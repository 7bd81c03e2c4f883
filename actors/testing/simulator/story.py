"""One story: a cluster, its clients and what goes wrong, all from a seed, so that a failure replays.

Real: coordinators (sequencer, committer, routing, requests, copies), the coordination server and its watch, pipelines,
links and their heartbeats, engines, fan-out, subscribers, caches. Some stories have several copies of each group, and
coordinators that are lost, or only taken for lost. Simulated: the clock and processes (`virtual`: time passes when
nothing is left to do), disks (`disks`: slow, sometimes full, and a crash loses what was not committed), wires
(`network`: delays, pieces, cuts). No sockets, no threads, no real time.

`run(seed)` plays one story and raises `Violation` when a guarantee of docs/guarantees.md is broken:

    order       within a group every subscriber sees offsets ascend, and all see the same record at an offset
    once        nothing is stored twice, no subscriber sees a position twice
    kept        nothing acknowledged at QoS 1 or 2 is lost: it is in the log, and every subscriber gets what is
    committed   a publication of QoS 1 or 2 is never seen before it is durable in every member of its in-sync set
    fenced      a member that has promised an epoch never promises an older one, whatever it has been through
    alike       in the end each group has its copies again, with the same records at the same places
    alive       nobody ends by himself
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lexicast.cluster.topics.names import matches

from ...broker.pipelines import pipeline as pipeline_module
from ...coordination import watching as watching_module
from ...coordinator import committer as committer_module
from ...loop import turns as turns_module
from .auditor import Violation
from .breaks import Break
from .broker_processes import BrokerProcesses
from .clients import Clients
from .coordinator_processes import CoordinatorProcesses
from .disks import Gate
from .mishaps import Mishaps
from .scene import FILTERS, Scene
from .transcript import Transcript
from .virtual import NOBODY

STORY_S = 3.0
HEAL_S = 120.0
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
        self.mishaps = Mishaps(self.scene, self.coordinators, self.brokers)
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
            scene.later(when() * 0.7, self.clients.read, f"reader-{i}", choose.choice(FILTERS), begin_s + STORY_S)
        for _ in range(choose.randint(0, 8)):
            scene.at(begin_s + when(), self.mishaps.happen)
        await asyncio.sleep(STORY_S + 1.0)
        await self._healed()

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
        lost = auditor.lost()
        if lost:
            auditor.found(f"kept: {lost} were acknowledged and are not stored")
        for error in loop.errors:
            auditor.found(f"alive: {error}")
        self.lasted_s = loop.time()
        if auditor.broken:
            raise Violation(auditor.broken[0])

    def lacking(self) -> str:
        """What is still to come."""
        for engine in self.brokers.engines.values():
            for pipeline in engine.coordinators.pipelines.values():
                if pipeline.unanswered_bytes:
                    return f"{engine.name} has {pipeline.unanswered_bytes} bytes unanswered at {pipeline.member.name}"
        stores = self.coordinators.stores
        for reader in self.clients.readers:
            wanted = {
                (group, offset)
                for store in stores.values()
                for group, offset, topic, _, _ in store.records()
                if group in reader.since and offset >= reader.since[group] and matches(reader.filter, topic)
            }
            if not wanted <= reader.places:
                missing = sorted(wanted - reader.places)
                return f"{reader.name} ({reader.filter!r} since {reader.since}) lacks {missing[:3]} of {len(missing)}"
        for group, state in self.coordinators.coordination.states().items():
            if len(state.in_sync) < self.scene.copies:
                return f"group {group} has {len(state.in_sync)} copies"
            if len({tuple(stores[name].publications(group)) for name in state.in_sync}) > 1:
                return f"the copies of group {group} at {state.in_sync} are not alike"
        return ""


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
