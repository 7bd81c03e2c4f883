"""Subscriptions with a window in time: SUBSCRIBE's user properties `since`, `until` and `last` (MQTT 5).

    since   "10m" or "-10m", ISO 8601, "beginning": what was published from then on, the past first, in one order
    until   "+10s", ISO 8601: the time at which the subscription ends by itself; what is published later is not sent
    last    "1" to "65535": of each topic so many publications from before the subscription (with `since`: not from
            before that), a topic after the other; then what is published from now on

Such a subscription has a cursor of its own beside the session's, and shares its packet ids, its window and its socket.
It belongs to the connection: it ends with it at the latest, and a session that is taken up again asks for it anew (the
time that it wants then is another one). Nothing retained is sent with `since` or `last`: the past holds it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import FOREVER_US, US_PER_S, parse_last, parse_time

from ..broker.dictionaries.link_choice import ConnectionDictionaries
from ..broker.encoding import BlockView, EncodedBlock, Grant, Grants
from ..broker.feeds.last_feed import LastFeed
from .codec.packets import Properties
from .codec.properties import USER_PROPERTY
from .subscriber import MqttSubscriber

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

SINCE, UNTIL, LAST = "since", "until", "last"
# A record may be stamped before `until` and committed a moment after it; how often the end is looked at then.
SETTLE_S = 0.5


class Window(NamedTuple):
    """Microseconds since 1970; `since_us` None: from now on, `until_us` FOREVER_US: no end. `last`: of each topic so
    many from before; None: all since then."""

    since_us: int | None
    until_us: int
    last: int | None = None

    @property
    def has_past(self) -> bool:
        """Whether it begins before the subscription."""
        return self.since_us is not None or self.last is not None


def window_of(properties: Properties | None, now_us: int) -> Window | None:
    """The window that a SUBSCRIBE asks for; None when it asks for none.

    Raises UsageError for what names no time, and for a number of last publications that is none.
    """
    asked = {name: value for name, value in (properties or {}).get(USER_PROPERTY, ()) if name in (SINCE, UNTIL, LAST)}
    if not asked:
        return None
    since_us = parse_time(asked[SINCE], now_us) if SINCE in asked else None
    until_us = parse_time(asked[UNTIL], now_us) if UNTIL in asked else FOREVER_US
    if until_us <= (now_us if since_us is None else since_us):
        raise UsageError(f"until={asked[UNTIL]!r} is not after the beginning of the subscription")
    return Window(since_us, until_us, parse_last(asked[LAST]) if LAST in asked else None)


class WindowSubscriber(MqttSubscriber):
    """One subscription with a window, beside the session's own subscriber `main`."""

    __slots__ = ("_began_us", "_main", "_timer", "_until_us")

    def __init__(self, engine: BrokerEngine, main: MqttSubscriber, until_us: int) -> None:
        # What `main` gets too would come twice: no topic stream. Nor aliases: what the client knows is `main`'s to say.
        self._main = main
        kind = main.kind._replace(streams=False, topic_aliases=0)
        super().__init__(engine, main.session, kind, main.write, drops=False)
        self._until_us = until_us
        # What is older is the past, which is a right of its own.
        self._began_us = engine.clock.time_us()
        self._timer: asyncio.TimerHandle | None = None
        self.ready = False

    @property
    def takes_packets(self) -> bool:
        """Every block's time is looked at."""
        return False

    # Publications out of the past are as they were published, and come before those that are live.
    feeds_are_retained = False

    def _go_on(self) -> None:
        if self._is_free() and (self._retained is None or (self._retained.send() and self._retained.done)):
            self._retained = None
            self.unblock()

    def refresh(self) -> None:
        """Never `ready`: every block's time is looked at first."""
        self.ready = False

    def _connection_dictionaries(self) -> ConnectionDictionaries | None:
        """The connection's."""
        return self._main.dictionaries

    def _write_introduced(self, encoded: EncodedBlock) -> None:
        """In the order of the connection."""
        self._main._write_introduced(encoded)

    def offer(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> None:
        """A live block, unless its time is over."""
        if view.block.time_us < self._until_us:
            super().offer(view, grants, encoded)

    def take_view(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> bool:
        """What is out of the past, unless its time is over."""
        block = view.block
        if block.time_us < self._began_us and self._engine.rights.restricted:
            grants, before = self._of_past(view, grants), grants
            if grants != before and encoded is not None:
                encoded = self.broker.encoder.shared(self.kind, view, grants)
        if block.time_us < self._until_us and any(grants):
            return super().take_view(view, grants, encoded)
        self.lagging[block.group] = block.last + 1
        return True

    def _of_past(self, view: BlockView, grants: Grants) -> Grants:
        """What it gets of a block from before it began."""
        topics, rights = view.block.meta.topics, self.rights
        assert rights is not None
        return tuple([g if rights.may_read_past(topic) else None for topic, g in zip(topics, grants, strict=True)])

    def _is_withheld(self, block: Block) -> bool:
        """A feed brings the last publications of topics, from before it began."""
        return self.rights is not None and not self.rights.may_read_past(block.meta.topics[block.meta.runs[0].topic])

    def end_at(self, wait_s: float, name: bytes) -> None:
        """End by itself in `wait_s` seconds, once it has been brought up."""
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._end, name)

    def _end(self, name: bytes) -> None:
        if self.lagging or self._retained is not None:
            self.end_at(SETTLE_S, name)
            return
        del self._main.windows[name]
        self.leave()

    def leave(self) -> None:
        """Its time is over, it is unsubscribed or replaced, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()  # or it would keep all this until then
            self._timer = None
        super().leave()


async def place(engine: BrokerEngine, main: MqttSubscriber, name: bytes, grant: Grant, window: Window) -> None:
    """Subscribe with a window, replacing one of the same filter. Raises LexicastError, TimeoutError."""
    start = None if window.since_us is None else await engine.coordinators.offsets_at([name], window.since_us)
    subscriber = WindowSubscriber(engine, main, window.until_us)
    if main.is_socket_full:
        subscriber.socket_full()
    if window.last is None:
        await engine.subscriptions.subscribe(subscriber, {name: grant}, start=start)
    else:
        subscriber.block()
        cuts = await engine.subscriptions.subscribe(subscriber, {name: grant})
        feed = LastFeed(engine.coordinators, name, window.last, cuts[name], start, window.until_us)
        subscriber.send_retained(feed, {name: grant})
    if main.closed:
        subscriber.leave()
        return
    replaced, main.windows[name] = main.windows.get(name), subscriber
    if replaced is not None:
        replaced.leave()
    if window.until_us != FOREVER_US:
        wait_s = (window.until_us - engine.clock.time_us()) / US_PER_S
        subscriber.end_at(max(0.0, wait_s) + SETTLE_S, name)
