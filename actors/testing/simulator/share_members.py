"""The shared subscriptions of a story (seeds from 4,000,000 on): members that come and go, what each of them gets, and
what all together are owed.

Looked at: what is first sent after the first member is there comes to one of them in the end ("shares: kept");
something comes again only where a connection that has got it ended, or something else has gone wrong by then ("shares:
once"); a topic comes in order ("shares: order") and to one member ("shares: topic") while nobody comes or goes, or did
in the second before, and nothing goes wrong. Of that there is little in most stories: when all is well at their end
members publish bursts, more than most have room for at once (`SimShare.share_calmly`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from lexicast.cluster.topics.names import matches

from ...coordinator.shares.led_shares import RETURN_S
from ...mqtt.codec.packets import PublishRun
from .auditor import Auditor
from .broker_processes import BrokerProcesses
from .mqtt_clients import LOOK_S, MQTT_FILTERS, MqttLine, SimMqttClient
from .scene import Scene
from .virtual import SimProcess

# A broker hears of the end of a connection that was cut a while later.
SETTLED_S = 1.0
# What members publish when all is well, and how long it may take to come.
BURSTS = 3
BURST = 8
CALM_S = 20.0


class SimShare:
    """One share, and who got what. `epochs()`: of each group, which changes with its leader."""

    def __init__(
        self, scene: Scene, auditor: Auditor, name: bytes, filter: bytes, epochs: Callable[[], Mapping[int, int]]
    ) -> None:
        self.scene = scene
        self.auditor = auditor
        self.name = name
        self.filter = filter
        self.subscribed_s: float | None = None
        self.members: list[SimShareMember] = []
        self._moved_s = 0.0
        # Since when nothing goes wrong any more, and the epochs then.
        self._calm_s = math.inf
        self._calm_epochs: Mapping[int, int] = {}
        self._epochs = epochs
        # Who got each of QoS 1 and 2 first, over which connection.
        self._seen: dict[bytes, MqttLine] = {}
        # (member, topic) -> (when, offset) of what came last; and topic -> (when, who got it).
        self._last: dict[tuple[str, bytes], tuple[float, int]] = {}
        self._holder: dict[bytes, tuple[float, str]] = {}

    def moved(self) -> None:
        """A member comes or goes."""
        self._moved_s = self.scene.loop.time()

    def _steady(self, since_s: float) -> bool:
        """Whether by then members had come where they are, and nothing has gone wrong since."""
        wrong_s = 0.0
        if self.scene.mishaps:
            wrong_s = self._calm_s if self._epochs() == self._calm_epochs else math.inf
        return since_s > max(wrong_s, self._moved_s + SETTLED_S)

    def got(self, member: SimMqttClient, line: MqttLine, run: PublishRun, payload: bytes) -> None:
        """A member has got a publication."""
        before = self._seen.setdefault(payload, line)
        stands = before.client.line is before and not before.ended.is_set()
        if before is not line and stands and not self.scene.mishaps and payload not in self.auditor.may_double:
            self.auditor.found(f"shares: once: {member.name} gets {payload!r}, which {before.client.name} holds")
        place = self.auditor.places.get(payload)
        if place is None or payload in self.auditor.may_double:
            return
        came_s, offset = self._last.get((member.name, run.topic), (0.0, -1))
        if place[1] < offset and self._steady(came_s):
            self.auditor.found(f"shares: order: {member.name} gets {payload!r} at {place} after offset {offset}")
        had_s, holder = self._holder.get(run.topic, (0.0, ""))
        if holder != member.name and self._steady(had_s):
            self.auditor.found(f"shares: topic: {member.name} gets {payload!r} on {run.topic!r}, which is {holder}'s")
        now_s = self.scene.loop.time()
        self._last[member.name, run.topic] = now_s, place[1]
        self._holder[run.topic] = now_s, member.name

    async def share_calmly(self) -> None:
        """All is well and members stay where they are: they publish, and it is seen who gets what in which order."""
        # What is kept for who may come back is dealt behind what is newer.
        await asyncio.sleep(RETURN_S + 2 * SETTLED_S)
        self._calm_s, self._calm_epochs = self.scene.loop.time(), self._epochs()
        for burst in range(BURSTS):
            for member in self.members:
                for number in range(BURST):
                    member.publish(b"calm-%s-%d-%d" % (member.name.encode(), burst, number))
            await asyncio.sleep(LOOK_S)
        for _ in range(round(CALM_S / LOOK_S)):
            if not (self.lacking() or any(member.under_way for member in self.members)):
                return
            await asyncio.sleep(LOOK_S)
        self.auditor.found(self.lacking() or f"shares: members of {self.filter!r} have no answer")

    def lacking(self) -> str:
        """What none of its members has got."""
        if self.subscribed_s is None:
            return ""
        missing = self.auditor.missing(self.filter, self.subscribed_s, self._seen, lambda topic, payload: True)
        return f"shares: kept: nobody of {self.filter!r} has got {missing[:3]} of {len(missing)}" if missing else ""


class SimShareMember(SimMqttClient):
    """A session that is a member of a share, and has no other subscription."""

    def __init__(
        self, scene: Scene, brokers: BrokerProcesses, auditor: Auditor, process: SimProcess, name: str, share: SimShare
    ) -> None:
        super().__init__(scene, brokers, auditor, process, name)
        self.share = share
        share.members.append(self)
        self.filter = b"$share/%s/%s" % (share.name, share.filter)

    def introduce(self, line: MqttLine) -> None:
        self.share.moved()
        super().introduce(line)

    def gone(self) -> None:
        self.share.moved()

    def subscribed(self) -> None:
        super().subscribed()
        self.share.moved()
        if self.share.subscribed_s is None:
            self.share.subscribed_s = self.subscribed_s

    def saw(self, line: MqttLine, run: PublishRun, payload: bytes) -> None:
        if not matches(self.share.filter, run.topic):
            self.auditor.found(f"subscribers: {self.name} gets {run.topic!r}, it wants {self.filter!r}")
        if run.qos:
            self.auditor.seen_by_session(payload)
            self.share.got(self, line, run, payload)

    def missing(self) -> list[bytes]:
        """Nothing is owed to a member by itself."""
        return []


def drawn_filter(scene: Scene) -> bytes:
    """What a share is of."""
    return scene.share_dice.choice(MQTT_FILTERS)
