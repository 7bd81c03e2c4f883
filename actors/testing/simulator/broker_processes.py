"""The brokers of a story: engines with pipelines to the coordinators, started, killed, started again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lexicast.cluster.config.tables import Config
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Member

from ...broker.coordinator_events import CoordinatorEvents
from ...broker.engine import BrokerEngine
from ...broker.pipelines.pipeline import Pipeline
from ...loop.background import keep_going
from ...mqtt.listener import MqttListener
from .matcher_processes import MatcherProcesses
from .network import CLUSTER_ID, KEY
from .scene import GROUPS, Scene
from .virtual import SimProcess


class SimListener(MqttListener):
    """A broker's MQTT listener without a port."""

    def __init__(self, engine: BrokerEngine, config: Config) -> None:
        super().__init__(engine, config.mqtt, False, config.broker.session_save_s, config.tls)

    def begin(self) -> None:
        """What is done beside connections."""
        self._periodic = [
            keep_going(self._sweep(), "looking for silent clients"),
            keep_going(self._save(), "saving sessions"),
        ]

    def accept(self) -> asyncio.Protocol:
        """A client has come."""
        return self._connection()


class BrokerProcesses:
    """See the module's docstring. What a broker held is gone with its process."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.engines: dict[str, BrokerEngine] = {}
        self.processes: dict[str, SimProcess] = {}
        self.listeners: dict[str, SimListener] = {}
        self._incarnations: dict[str, int] = {}
        # Where there are content subscriptions.
        self.matchers: MatcherProcesses | None = None

    def open(self, name: str, states: Mapping[int, GroupState]) -> None:
        """Start a broker, if it does not run; `states`: who leads the groups now."""
        before = self.processes.get(name)
        if before is not None and before.alive:
            return
        process = self.processes[name] = self.scene.new_process(name, self.scene.node_of(name))
        self.scene.transcript.say(name, f"starts on {process.node}")
        leaders = {group: state.leader for group, state in states.items()}
        if self.matchers is None:
            self._incarnations[name] = incarnation = self._incarnations.get(name, 0) + 1
            process.do(self._start, name, incarnation, leaders)
        else:
            self.scene.loop.create_task(
                self._start_registered(self.matchers, process, leaders), context=process.context.copy()
            )

    async def _start_registered(
        self, matchers: MatcherProcesses, process: SimProcess, leaders: Mapping[int, str]
    ) -> None:
        incarnation = await matchers.register_broker(process)
        self._start(process.name, incarnation, leaders)
        matchers.with_broker(process, self.engines[process.name])

    def _start(self, name: str, incarnation: int, leaders: Mapping[int, str]) -> None:
        clock = self.scene.clocks[self.processes[name].node]
        engine = self.engines[name] = BrokerEngine(name, incarnation, GROUPS, self.scene.config, clock)
        listener = self.listeners[name] = SimListener(engine, self.scene.config)
        sessions = listener.sessions
        events = CoordinatorEvents(engine, sessions.requests, sessions.resumed, listener.room)

        def make(member: Member) -> Pipeline:
            hello = ("broker", name, incarnation)
            return Pipeline(
                events,
                member,
                hello,
                (KEY, CLUSTER_ID),
                producer=name.encode(),
                window_batches=2,
                batch_bytes_max=4_096,
                queue_bytes_max=65_536,
                beats=self.scene.broker_beats,
            )

        members = [Member(each, 0, (each,), "", 0) for each in self.scene.coordinators]
        engine.coordinators.follow(members, make, leaders)
        listener.begin()

    def kill(self, name: str) -> None:
        """Kill a broker: what it has not been answered is nobody's promise."""
        process = self.processes[name]
        if process.alive:
            self.scene.transcript.say(name, "is killed")
            process.kill()
            self.engines.pop(name, None)
            self.listeners.pop(name, None)
            self.scene.network.ends_of(process)
