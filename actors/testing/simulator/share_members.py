"""The shared subscriptions of a story (seeds from 4,000,000 on): members that come and go, what each of them gets, and
what all together are owed.

Looked at: what is first sent after the first member is there comes to one of them in the end ("shares: kept");
something comes again only where a connection that has got it ended, or something else has gone wrong by then ("shares:
once"); a topic comes in order to its member while nobody comes or goes, or did in the second before, and nothing goes
wrong ("shares: order").
"""

from __future__ import annotations

from lexicast.cluster.topics.names import matches

from ...mqtt.codec.packets import PublishRun
from .auditor import Auditor
from .broker_processes import BrokerProcesses
from .mqtt_clients import MQTT_FILTERS, MqttLine, SimMqttClient
from .scene import Scene
from .virtual import SimProcess

# A broker hears of the end of a connection that was cut a while later.
SETTLED_S = 1.0


class SimShare:
    """One share, and who got what."""

    def __init__(self, scene: Scene, auditor: Auditor, name: bytes, filter: bytes) -> None:
        self.scene = scene
        self.auditor = auditor
        self.name = name
        self.filter = filter
        self.subscribed_s: float | None = None
        self._moved_s = 0.0
        # Who got each of QoS 1 and 2 first, over which connection.
        self._seen: dict[bytes, MqttLine] = {}
        # (member, topic) -> (when, offset) of what came last.
        self._last: dict[tuple[str, bytes], tuple[float, int]] = {}

    def moved(self) -> None:
        """A member comes or goes."""
        self._moved_s = self.scene.loop.time()

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
        if place[1] < offset and came_s > self._moved_s + SETTLED_S and not self.scene.mishaps:
            self.auditor.found(f"shares: order: {member.name} gets {payload!r} at {place} after offset {offset}")
        self._last[member.name, run.topic] = self.scene.loop.time(), place[1]

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
