"""What a broker tells of itself on `$SYS/broker/...`, under the names that Mosquitto has for it.

Each broker tells its own clients of itself: nothing of it is stored, ordered or passes a link. Who subscribes gets the
values as what is retained, and each again where it has changed, every `mqtt.sys_interval_s`. Who takes nothing at the
moment is owed them, and gets them with a later round. Python clients get none, subscriptions with a window in time what
changes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lexicast.cluster.blocks import PUBLICATIONS, RAW, RETAIN, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.topics.names import SHARE_PREFIX, SYS_PREFIX, matches

from ..broker.content.choosing import chosen
from ..broker.encoding import BlockView, EncodedBlock, Grant, Kind
from ..loop.turns import Turns
from ..status.installed import installed_version
from ..status.sys_statistics import SysCounts, SysStatistics
from .subscriber import MqttSubscriber

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

# A value as it is sent, by what decides that.
Encodings: TypeAlias = dict[tuple[Kind, Grant], EncodedBlock]


class SysTopics:
    """See the module's docstring. `subscribers`: those that are served; `connections`: so many have come."""

    def __init__(
        self, engine: BrokerEngine, interval_s: int, subscribers: Callable[[], Sequence[MqttSubscriber]]
    ) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._subscribers = subscribers
        self.connections = 0
        self._told: dict[bytes, bytes] = {}
        # Who has not been told everything yet: of which filters, or topics.
        self._owed: dict[MqttSubscriber, Mapping[bytes, Grant]] = {}

    async def run(self) -> None:
        """Tell again and again what has changed. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        statistics = SysStatistics(installed_version(), loop.time(), self._count())
        self._told = statistics.values()
        while True:
            await asyncio.sleep(self._interval_s)
            statistics.round(loop.time(), self._count())
            await self._tell(statistics.values())

    def _count(self) -> SysCounts:
        engine, subscribers = self._engine, self._subscribers()
        windows = [name for subscriber in subscribers for name in subscriber.windows]
        return SysCounts(
            connected=len(subscribers),
            connections=self.connections,
            subscriptions=sum([len(subscriber.subscriptions) for subscriber in subscribers]),
            shared_subscriptions=sum([name.startswith(SHARE_PREFIX) for name in windows]),
            published=engine.coordinators.published_records,
            delivered=engine.live.delivered_records,
        )

    async def _tell(self, values: dict[bytes, bytes]) -> None:
        """What has changed: to all who want it, a topic a turn, as it is with publications."""
        owed, self._owed = self._owed, {}
        changed = [topic for topic, value in values.items() if value != self._told.get(topic)]
        self._told = values
        turns = Turns()
        for topic in changed:
            view, encodings = self._view(topic), Encodings()
            for subscriber, grant in self._engine.subscriptions.fan(topic):
                if isinstance(subscriber, MqttSubscriber) and not _covers(owed.get(subscriber, ()), topic):
                    self._send(view, subscriber, grant, encodings)
            await turns.give_way()
        for subscriber, grants in owed.items():
            self._give(subscriber, grants)

    def subscribed(self, subscriber: MqttSubscriber, grants: Mapping[bytes, Grant]) -> None:
        """Some of these subscriptions are new: below `$SYS/` it is told how things stand [MQTT-3.3.1-9]."""
        wanted = {
            name: grant._replace(retain_as_published=True)
            for name, grant in grants.items()
            if name.startswith(SYS_PREFIX)
        }
        if wanted and self._told:
            self._give(subscriber, wanted)

    def _give(self, subscriber: MqttSubscriber, wanted: Mapping[bytes, Grant]) -> None:
        """How things stand below these filters, or later."""
        if subscriber.blocked and not subscriber.closed:
            self._owe(subscriber, wanted)
            return
        for name, grant in wanted.items():
            for topic in self._granted(subscriber, name):
                self._send(self._view(topic), subscriber, grant, Encodings())

    def _owe(self, subscriber: MqttSubscriber, wanted: Mapping[bytes, Grant]) -> None:
        self._owed[subscriber] = {**self._owed.get(subscriber, {}), **wanted}

    def _granted(self, subscriber: MqttSubscriber, name: bytes) -> Iterable[bytes]:
        """The topics of a filter that it may read, and is (still) subscribed to."""
        return [topic for topic in self._told if matches(name, topic) and subscriber.grant(topic) is not None]

    def _view(self, topic: bytes) -> BlockView:
        """A value as a publication that no group has."""
        value, now_us = self._told[topic], self._engine.clock.time_us()
        meta = Meta((topic,), (Run(0, 0, RETAIN, RAW, 0, None, -1, 1),), (), (), (), ())
        lengths = len(value).to_bytes(U32, "little")
        return BlockView(Block(0, 0, 0, 0, now_us, PUBLICATIONS, pack_meta(meta), lengths, value), now_us)

    def _send(self, view: BlockView, subscriber: MqttSubscriber, grant: Grant, encodings: Encodings) -> None:
        if subscriber.closed:
            return
        if subscriber.blocked:
            self._owe(subscriber, {view.block.meta.topics[0]: grant})
            return
        key, encoder = (subscriber.kind, grant), self._engine.encoder
        encoded = encodings.get(key)
        if encoded is None:
            found = chosen(view, (grant,), encoder)
            encoded = encodings[key] = EncodedBlock(b"") if found is None else encoder.shared(subscriber.kind, *found)
        if encoded.data:
            subscriber.write_tagged(encoded)


def _covers(filters: Iterable[bytes], topic: bytes) -> bool:
    return any([matches(name, topic) for name in filters])
