"""Releases of QoS 2 publications: a client's PUBRELs, answered once the groups' forgetting of the ids is durable.

The client may use the ids again then; those of publications that are refused, too. What arrives meanwhile is gathered
into the next round; where RELEASES_MAX ids wait the client is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lexicast.cluster.errors import UnavailableError

from ..broker.coordinators import Coordinators
from ..broker.pipelines.pipeline import Pipeline
from .client_line import RELEASES, ClientLine
from .codec.encode import encode_replies
from .owning.owned_sessions import RETRY_S
from .session import PACKET_ID_MAX, Reply
from .subscriber import MqttSubscriber

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

RELEASES_MAX = 1_000


class _Waiting(NamedTuple):
    """Ids by the group that is to forget them (None: all), and what follows once they have: answers, and a call."""

    wanted: dict[int | None, list[int]]
    replies: list[Reply]
    done: Callable[[], None] | None = None


class Releases:
    """See the module's docstring. Of a connection that is open, made at its first publication or PUBREL.

    `resumed`: the session is older than the connection, so ids that it does not know may be of an earlier one.
    """

    __slots__ = (
        "_engine",
        "_line",
        "_refused",
        "_releasing",
        "_resumed",
        "_session",
        "_waiting",
        "_waiting_ids",
        "_write",
    )

    def __init__(self, engine: BrokerEngine, line: ClientLine, subscriber: MqttSubscriber, resumed: bool) -> None:
        self._engine = engine
        self._line = line
        self._write = subscriber.write
        self._session = subscriber.session
        self._resumed = resumed
        self._waiting: list[_Waiting] = []
        self._waiting_ids = 0
        self._releasing = False
        # A bit for each packet id: whether a publication under it was refused in this connection.
        self._refused: bytearray | None = None

    def release(self, ids: list[int]) -> None:
        """PUBREL. Raises MqttProtocolError."""
        released = self._session.on_pubrels(ids, self._resumed)
        wanted: dict[int | None, list[int]] = {}
        known: set[int] = set()
        for group, listed in released.by_group.items():
            wanted[group] = listed
            known.update(listed)
        unknown = [packet_id for packet_id in ids if packet_id not in known]
        if unknown and self._resumed:
            # Of an earlier connection, perhaps to another broker: whichever group remembers them.
            wanted[None] = unknown
        self._enter(_Waiting(wanted, released.replies), len(ids))

    def refuse(self, ids: list[int], group: int, done: Callable[[], None]) -> bool:
        """Publications to a topic of `group` are refused, and the client may use their ids for others once it is told
        [MQTT-4.3.3-9]: `done` is called when that can be. False: it can at once.

        What an earlier connection had stored under an id is of the same topic, since what was not answered is sent
        again as it was [MQTT-4.4.0-1]. So this group is asked, once for each id: what this connection publishes under
        it later is stored and released, or stored by nobody.
        """
        if not self._resumed:
            return False
        refused = self._refused
        if refused is None:
            refused = self._refused = bytearray((PACKET_ID_MAX >> 3) + 1)
        first = [packet_id for packet_id in ids if not refused[packet_id >> 3] & 1 << (packet_id & 7)]
        for packet_id in first:
            refused[packet_id >> 3] |= 1 << (packet_id & 7)
        if not first:
            return False
        self._enter(_Waiting({group: first}, [], done), len(first))
        return True

    def _enter(self, waiting: _Waiting, ids: int) -> None:
        self._waiting.append(waiting)
        self._waiting_ids += ids
        if self._waiting_ids >= RELEASES_MAX:
            self._line.pause(RELEASES)
        if not self._releasing:
            self._releasing = True
            self._line.work(self._release_all())

    async def _release_all(self) -> None:
        """Also those of a connection that has ended meanwhile: they came before its end."""
        try:
            while self._waiting:
                releases, self._waiting, self._waiting_ids = self._waiting, [], 0
                wanted: dict[int | None, list[int]] = {}
                for waiting in releases:
                    for group, ids in waiting.wanted.items():
                        wanted.setdefault(group, []).extend(ids)
                await forget_ids(self._engine, self._session.uid, self._session.generation, wanted)
                replies = [reply for waiting in releases for reply in waiting.replies]
                if replies and self._line.is_open:
                    self._write(encode_replies(replies, self._session.version))
                for waiting in releases:
                    if waiting.done is not None:
                        waiting.done()
                self._line.resume(RELEASES)
        finally:
            self._releasing = False


async def forget_ids(engine: BrokerEngine, uid: bytes, generation: int, wanted: Mapping[int | None, list[int]]) -> None:
    """Have groups (None: all) forget QoS 2 packet ids that a session released in this generation; returns when that is
    durable.

    Raises LexicastError, TimeoutError.
    """
    every = range(engine.groups)
    session = (uid, generation)
    work = [_forget(engine.coordinators, [*every] if g is None else [g], session, ids) for g, ids in wanted.items()]
    async with asyncio.timeout(engine.config.link.request_timeout_s):
        await asyncio.gather(*work)


async def _forget(coordinators: Coordinators, groups: list[int], session: tuple[bytes, int], ids: list[int]) -> None:
    """Ask who leads the groups, whoever that is by then, until all have done it."""
    left = set(groups)

    async def ask(pipeline: Pipeline, led: list[int]) -> None:
        with suppress(UnavailableError):  # its link broke, or others lead: what was not done is done now
            await pipeline.request("release", led, *session, ids)
            left.difference_update(led)

    while True:
        await asyncio.gather(*[ask(pipeline, led) for pipeline, led in coordinators.by_leader(left).items()])
        if not left:
            return
        await asyncio.sleep(RETRY_S)
