"""The services that all MQTT connections of one broker share: its engine, its sessions, its tasks, what it counts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from lexicast.cluster.config.tables import MqttConfig

from .client_line import NO_ROOM, ClientLine
from .login.logins import Logins
from .opening_line import OpeningLine
from .owning.owned_sessions import OwnedSessions
from .subscriber import MqttSubscriber
from .sys_topics import SysTopics

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

log = logging.getLogger(__name__)


class MqttServices:
    """See the module's docstring."""

    def __init__(
        self,
        engine: BrokerEngine,
        config: MqttConfig,
        compression: bool,
        subscribers: Callable[[], Sequence[MqttSubscriber]],
    ) -> None:
        """`compression`: whether clients may take part in dictionary compression; `subscribers`: those that are
        served."""
        self.engine = engine
        self.config = config
        self.compression = compression
        # What bridges of other clusters are told; known once it listens.
        self.cluster_id = ""
        self.logins = Logins(engine.config)
        self.sessions = OwnedSessions(engine, self.logins.knows)
        self.sys_topics = SysTopics(engine, config.sys_interval_s, subscribers)
        # Connections refused, by CONNACK's reason code or the name of the limit.
        self.refused: Counter[str] = Counter()
        # What clients have sent, without TLS and WebSocket's frames.
        self.received_bytes = 0
        # Publications and wills of clients on topics below `$`, which are not theirs.
        self.dropped_dollar = 0
        # Those that are not read because the pipelines are full.
        self.waiting: set[ClientLine] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.openings = OpeningLine(self.spawn)
        # Who sends acknowledgements at the end of this turn.
        self._acknowledging: list[Callable[[], None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something for a connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work for a connection failed", exc_info=task.exception())

    def acknowledge_soon(self, send: Callable[[], None]) -> None:
        """Call `send` at the end of this turn: a commit answers many connections at once, and a callback each would
        cost as much as the acknowledgement."""
        if not self._acknowledging:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._acknowledging.append(send)

    def _acknowledge(self) -> None:
        acknowledging, self._acknowledging = self._acknowledging, []
        for send in acknowledging:
            try:
                send()
            except Exception:  # the others are acknowledged all the same
                log.exception("publications could not be acknowledged")

    def wait_for_room(self, line: ClientLine) -> None:
        """A pipeline is full: the client is not read until `room`."""
        self.waiting.add(line)
        line.pause(NO_ROOM)

    def room(self) -> None:
        """The pipelines have room again."""
        waiting, self.waiting = self.waiting, set()
        for line in waiting:
            line.resume(NO_ROOM)

    def cancel(self) -> None:
        """End what is still being done for connections."""
        self.openings.close()
        self.logins.close()
        for task in list(self._tasks):
            task.cancel()
