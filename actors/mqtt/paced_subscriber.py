"""The pace of one MQTT client: what stands in the way of deliveries to it, and when they go on.

A full socket, a window that is used up, and what an earlier connection left and is sent again stand in the way. Those
who lag for that are brought up when the socket has drained or acknowledgements have made room in the window: at once
when they have made plenty, else a moment later, so that one acknowledgement is enough for one publication and a stream
of single ones still makes batches. Only a page of the retained publications of new subscriptions waits here, and what
is sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..broker.encoding import Kind
from ..broker.subscriber import Subscriber
from .retained_sending import RetainedSending
from .session import Session

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

# How long room for less than half a window waits for more acknowledgements: going on costs a look into the cache or the
# store, however little can be sent then.
ROOM_WAIT_S = 0.01


class PacedSubscriber(Subscriber):
    """See the module's docstring."""

    __slots__ = (
        "_engine",
        "_resending",
        "_retained",
        "_room_waits",
        "_socket_full",
        "_window_full",
        "session",
        "windows",
    )

    def __init__(self, engine: BrokerEngine, session: Session, kind: Kind, drops: bool) -> None:
        super().__init__(engine.subscriptions, kind, drops, engine.rights.client(session.user, session.client_id))
        self._engine = engine
        self.session = session
        self._retained: RetainedSending | None = None
        self._resending = False
        self._socket_full = False
        self._window_full = False
        self._room_waits = False
        # Subscriptions with a window in time, each with a cursor of its own (`window_subscriptions`), and shared ones
        # (`share_subscriptions`).
        self.windows: dict[bytes, PacedSubscriber] = {}

    @property
    def is_socket_full(self) -> bool:
        """Whether the transport has asked for a pause."""
        return self._socket_full

    @property
    def is_resending(self) -> bool:
        """Whether what an earlier connection left is on its way."""
        return self._resending

    def start(self) -> None:
        """CONNACK is out: deliveries begin."""
        self._go_on()

    def socket_full(self) -> None:
        """The transport asks for a pause."""
        self._socket_full = True
        self.block()
        for window in self.windows.values():
            window.socket_full()

    def socket_drained(self) -> None:
        """The transport takes more."""
        self._socket_full = False
        self._go_on()
        for window in list(self.windows.values()):
            window.socket_drained()

    def resending(self, under_way: bool) -> None:
        """Publications of an earlier connection are on their way, and new ones stay behind them [MQTT-4.6.0-1]."""
        for window in list(self.windows.values()):
            window.resending(under_way)
        self._resending = under_way
        if under_way:
            self.block()
        else:
            self._go_on()

    def acknowledged(self) -> None:
        """Acknowledgements came in: go on with what there is room for."""
        if self._window_full or self._retained:
            if self._plenty:
                self._use_room()
            elif self.session.room and not self._room_waits:
                self._room_waits = True
                asyncio.get_running_loop().call_later(ROOM_WAIT_S, self._room_waited)
        for window in list(self.windows.values()):
            window.acknowledged()

    @property
    def _plenty(self) -> bool:
        """Whether half of the window is free, or one place of a window of up to three."""
        return self.session.room >= max(1, self.session.window // 2)

    def _room_waited(self) -> None:
        self._room_waits = False
        if self.session.room:
            self._use_room()

    def _use_room(self) -> None:
        if not self.closed:
            self._window_full = False
            self._go_on()

    def _is_free(self) -> bool:
        return not (self._socket_full or self._window_full or self._resending or self.closed)

    def _go_on(self) -> None:
        if not self._is_free():
            return
        if self._retained is not None:
            if not self._retained.send():
                return
            if self._retained.done:
                self._retained = None
                self.session.paid()
        self.unblock()

    def refresh(self) -> None:
        super().refresh()
        if self.lagging:
            self.session.unsettled.lagging[self.session.client_id] = None

    def frontier(self) -> dict[int, int]:
        """group -> the lowest offset not acknowledged, where that is before the broker's head."""
        session = self.session
        if not (session.unacknowledged or session.pending or session.released):
            return self.lagging.copy()
        held = session.held()
        if not self.lagging:
            return held
        found = self.lagging.copy()
        for group, offset in held.items():
            if offset < found.get(group, offset + 1):
                found[group] = offset
        return found

    def unsubscribed(self) -> None:
        """Of one in `windows`: the client wants nothing more of it."""
        self.leave()

    def leave(self) -> None:
        """The connection has ended, and all subscriptions here with it."""
        for window in list(self.windows.values()):
            window.leave()
        self.windows = {}
        if self._retained is not None:
            self._retained.close()
            self._retained = None
        self._engine.subscriptions.leave(self)
