"""What a broker tells of itself on `$SYS/broker/...`, under the names that Mosquitto has for it.

Each broker tells its own clients of itself: nothing of it is stored, ordered or passes a link. Who subscribes gets the
values as what is retained, and each again where it has changed, every `mqtt.sys_interval_s`. Who takes nothing at the
moment gets them with the next round. Python clients and subscriptions with a window in time get none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lexicast.cluster.blocks import PUBLICATIONS, RAW, RETAIN, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.topics.names import SHARE_PREFIX, SYS_PREFIX, matches

from ..broker.content.choosing import chosen
from ..broker.encoding import BlockView, Grant
from ..broker.subscriber import Subscriber
from ..status.installed import installed_version
from ..status.sys_statistics import SysCounts, SysStatistics
from .subscriber import MqttSubscriber

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine


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
        # Who has subscribed and not been told everything yet.
        self._owed: dict[MqttSubscriber, Mapping[bytes, Grant]] = {}

    async def run(self) -> None:
        """Tell again and again what has changed. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        statistics = SysStatistics(installed_version(), loop.time(), self._count())
        self._told = statistics.values()
        while True:
            await asyncio.sleep(self._interval_s)
            statistics.round(loop.time(), self._count())
            self._tell(statistics.values())

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

    def _tell(self, values: dict[bytes, bytes]) -> None:
        owed, self._owed = self._owed, {}
        changed = [topic for topic, value in values.items() if value != self._told.get(topic)]
        self._told = values
        for topic in changed:
            view = self._view(topic)
            for subscriber, grant in self._engine.subscriptions.fan(topic):
                if subscriber not in owed:
                    self._send(view, subscriber, grant)
        for subscriber, grants in owed.items():
            self.subscribed(subscriber, grants)

    def subscribed(self, subscriber: MqttSubscriber, grants: Mapping[bytes, Grant]) -> None:
        """Some of these subscriptions are new: below `$SYS/` it is told how things stand [MQTT-3.3.1-9]."""
        if subscriber.closed or not self._told:
            return
        wanted = {name: grant for name, grant in grants.items() if name.startswith(SYS_PREFIX)}
        if not wanted:
            return
        if subscriber.blocked:
            self._owed[subscriber] = {**self._owed.get(subscriber, {}), **wanted}
            return
        for name, grant in wanted.items():
            for topic in self._readable(subscriber, name):
                self._send(self._view(topic), subscriber, grant._replace(retain_as_published=True))

    def _readable(self, subscriber: MqttSubscriber, name: bytes) -> Iterable[bytes]:
        """The topics of a filter that it may read."""
        rights = subscriber.rights
        found = [topic for topic in self._told if matches(name, topic)]
        return found if rights is None else [topic for topic in found if rights.may_read(topic)]

    def _view(self, topic: bytes) -> BlockView:
        """A value as a publication that no group has."""
        value, now_us = self._told[topic], self._engine.clock.time_us()
        meta = Meta((topic,), (Run(0, 0, RETAIN, RAW, 0, None, -1, 1),), (), (), (), ())
        lengths = len(value).to_bytes(U32, "little")
        return BlockView(Block(0, 0, 0, 0, now_us, PUBLICATIONS, pack_meta(meta), lengths, value), now_us)

    def _send(self, view: BlockView, subscriber: Subscriber, grant: Grant) -> None:
        if not isinstance(subscriber, MqttSubscriber) or subscriber.blocked or subscriber.closed:
            return
        encoder = self._engine.encoder
        found = chosen(view, (grant,), encoder)
        if found is not None:
            subscriber.write_tagged(encoder.shared(subscriber.kind, *found))
