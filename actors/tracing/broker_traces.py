"""A broker's part in traces: what one client asks of where a publication is, and the hops of a marked one.

A marked publication carries a user property and goes the way of all others, in their batches. What it is timed by
stands beside that way: a subscriber of the topic, placed and served as any, which notes when it is given the mark; the
coordinator's watch of the group (`group_traces`); and the answer to its entry. Who traces nothing has none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LimitError, NotAuthorizedError, PublishRefusedError, UnavailableError, UsageError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.properties import USER_PROPERTY
from lexicast.cluster.protocol.requests import TRACE_MARK
from lexicast.cluster.topics.names import check_topic

from ..broker.encoding import LINK, Grant, Kind
from ..broker.engine import BrokerEngine
from ..broker.pipelines.pipeline import Pipeline
from ..broker.python_clients.user_rights import UserRights
from ..broker.subscriber import Subscriber
from ..mqtt.paced_subscriber import PacedSubscriber
from .group_traces import LASTS_S

# Traces of one client at a time.
TRACES_MAX: Final = 4
# Subscribers of a topic that are looked at, and of which the names are told.
LOOKED_AT_MAX: Final = 10_000
NAMES_MAX: Final = 20
MARK_MAX: Final = 64
# How long a marked publication is kept.
KEPT_MS: Final = 60_000
QOS_1: Final = 1


class TracedSubscriber(Subscriber):
    """Gets a topic as any subscriber does, and notes when it is given what is marked. `seen`: "delivered_us", the
    "placed_us" that the coordinator has stored, "offset" and "epoch"."""

    __slots__ = ("_clock", "_mark", "seen")

    def __init__(self, engine: BrokerEngine, mark: str, user: UserRights | None) -> None:
        super().__init__(engine.subscriptions, Kind(LINK), rights=None if user is None else user.of_topics)
        self._mark = mark
        self._clock: Clock = engine.clock
        self.seen: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        """Look at one packed block."""
        now_us = self._clock.time_us()
        block = Block.from_wire(msgpack.unpackb(data, use_list=False, strict_map_key=False))
        offset = _marked(block, self._mark)
        if offset is not None and not self.seen.done():
            found = {"placed_us": block.time_us, "epoch": block.epoch, "offset": offset}
            self.seen.set_result({"delivered_us": now_us, **found})


def _marked(block: Block, mark: str) -> int | None:
    """The offset of what is marked."""
    at = block.first
    for run in block.meta.runs:
        at += run.skip
        pairs = (run.properties or {}).get(USER_PROPERTY, ())
        if any([tuple(pair) == (TRACE_MARK, mark) for pair in pairs]):
            return at
        at += run.count
    return None


class _Trace:
    """One marked publication, before it is sent and after."""

    def __init__(self, topic: bytes, subscriber: TracedSubscriber) -> None:
        self.topic = topic
        self.subscriber = subscriber
        self.ends: asyncio.TimerHandle | None = None
        # Where it is published: the group's leader, its watch, and what was said of its clock.
        self.leader: Pipeline | None = None
        self.watch = 0
        self.clock: tuple[int, int, int] = (0, 0, 0)


class BrokerTraces:
    """See the module's docstring: the requests of one client. `user`: None where it holds the cluster's key."""

    def __init__(self, engine: BrokerEngine, client_id: str, user: UserRights | None) -> None:
        self._engine = engine
        self._client_id = client_id
        self._user = user
        self._traces: dict[str, _Trace] = {}
        self._closed = False

    def answers(self) -> dict[str, Any]:
        """By request (`cluster.protocol.requests`)."""
        return {
            "trace": self.where,
            "trace_begin": self.begin,
            "trace_publish": self.publish,
            "trace_seen": self.seen,
            "trace_end": self.end,
            "clock": self.clock,
        }

    # -- where a publication is

    async def where(self, topic: bytes, offset: int, whole: bool) -> dict[str, Any]:
        """Where what is at `offset` in the topic's group is: {"broker", "group", "subscribers": this broker's, and,
        `whole`, "leader": see `GroupTraces.trace`, None where nobody leads it}.

        Raises TopicError, NotAuthorizedError, UnavailableError.
        """
        self._check(topic, past=True)
        engine, answers = self._engine, list[Any]()
        group = topic_group(topic, engine.groups)
        found = {"broker": engine.name, "group": group, "subscribers": self._subscribers(topic, group, offset)}
        if not whole:
            return found
        leader = engine.coordinators.pipeline_of(group)
        if leader is not None:
            await engine.coordinators.ask(leader, answers.append, "trace", group, offset, topic)
        return {**found, "leader": answers[0] if answers else None}

    def _subscribers(self, topic: bytes, group: int, offset: int) -> dict[str, Any]:
        """How many there are, how many of those looked at have yet to be given it, how many sampling brokers look at
        parts of it, and (for operators) the ids of MQTT clients, with what each has got: "waits", "sent" (not
        acknowledged), "given"."""
        head = self._engine.live.heads.get(group, 0)
        everybody = [s for s, _ in self._engine.subscriptions.fan(topic) if not isinstance(s, TracedSubscriber)]
        fan = [s for s in everybody if not s.samples]
        waiting = [s for s in fan[:LOOKED_AT_MAX] if s.stands_at(group, head) <= offset]
        found: dict[str, Any] = {"count": len(fan), "waiting": len(waiting), "samples": len(everybody) - len(fan)}
        if self._user is None:
            late = {*waiting[:NAMES_MAX]}
            named = dict.fromkeys([*late, *fan[: NAMES_MAX - len(late)]])
            found["clients"] = {
                s.session.client_id: "waits" if s in late else _given(s, group, offset)
                for s in named
                if isinstance(s, PacedSubscriber)
            }
        return found

    def _check(self, topic: bytes, past: bool) -> None:
        check_topic(topic)
        if self._user is not None:
            self._user.check_filters([topic], past)

    # -- a marked one

    async def clock(self) -> int:
        """This broker's time, microseconds since 1970."""
        return self._engine.clock.time_us()

    async def begin(self, mark: str, topic: bytes, publishes: bool) -> None:
        """A subscriber waits for the mark; `publishes`: it is published here, and its group's leader watches the group.
        For LASTS_S.

        Raises TopicError, NotAuthorizedError, LimitError, UsageError, UnavailableError.
        """
        self._check(topic, past=False)
        if publishes and self._user is not None and not _may_publish(self._user, topic):
            raise NotAuthorizedError(f"{self._user.who} may not publish to {topic.decode()!r}")
        if mark in self._traces or len(self._traces) >= TRACES_MAX or len(mark) > MARK_MAX:
            raise LimitError(f"a client has {TRACES_MAX} traces at a time, each with a short mark of its own")
        trace = self._traces[mark] = _Trace(topic, TracedSubscriber(self._engine, mark, self._user))
        trace.ends = asyncio.get_running_loop().call_later(LASTS_S, self._end, mark)
        try:
            await self._engine.subscriptions.subscribe(trace.subscriber, {topic: Grant()})
            if publishes:
                await self._watch(trace)
        except BaseException:
            self._end(mark)
            raise
        if self._closed or self._traces.get(mark) is not trace:
            self._engine.subscriptions.leave(trace.subscriber)

    async def _watch(self, trace: _Trace) -> None:
        engine, answers = self._engine, list[dict[str, int]]()
        group = topic_group(trace.topic, engine.groups)
        leader = engine.coordinators.leader_of(group)
        asked_us = engine.clock.time_us()

        def take(answer: dict[str, int]) -> None:
            trace.clock = asked_us, answer["now_us"], engine.clock.time_us()
            answers.append(answer)

        await engine.coordinators.ask(leader, take, "trace_begin", group)
        trace.leader, trace.watch = leader, answers[0]["watch"]

    async def publish(self, mark: str, payload: bytes) -> dict[str, int]:
        """Publish it, QoS 1; once it is acknowledged: when this broker had it, and the acknowledgement ("received_us",
        "acknowledged_us"). Raises UsageError, PublishRefusedError, UnavailableError."""
        received_us = self._engine.clock.time_us()
        trace = self._trace(mark)
        done: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()

        def told(result: Any) -> None:
            if not done.done():
                done.set_result((self._engine.clock.time_us(), result))

        self._engine.coordinators.publish(
            trace.topic,
            QOS_1,
            [payload],
            self._client_id,
            told,
            expiry_ms=KEPT_MS,
            properties={USER_PROPERTY: [[TRACE_MARK, mark]]},
        )
        acknowledged_us, result = await _within(done, "no acknowledgement has come")
        if isinstance(result, str):
            raise PublishRefusedError(f"the marked publication was refused: {result}")
        return {"received_us": received_us, "acknowledged_us": acknowledged_us}

    async def seen(self, mark: str) -> dict[str, int]:
        """Returns when the mark is given to this broker's subscriber: see `TracedSubscriber.seen`."""
        found: dict[str, int] = await _within(self._trace(mark).subscriber.seen, "it has not been delivered")
        return found

    async def end(self, mark: str) -> dict[str, Any]:
        """The trace is over: what its group's leader has seen of it (`GroupTraces.end`), and "clock": when that was
        asked for its time, what it said, and when the answer came. Raises UsageError, UnavailableError."""
        trace = self._trace(mark)
        seen = await self.seen(mark)
        self._end(mark)
        if trace.leader is None:
            return {}
        answers: list[dict[str, Any]] = []
        group = topic_group(trace.topic, self._engine.groups)
        await self._engine.coordinators.ask(
            trace.leader, answers.append, "trace_end", group, trace.watch, seen["offset"]
        )
        return {**answers[0], "clock": trace.clock}

    def _trace(self, mark: str) -> _Trace:
        trace = self._traces.get(mark)
        if trace is None:
            raise UsageError(f"there is no trace {mark!r} (any more): it lasts {LASTS_S:.0f} s")
        return trace

    def _end(self, mark: str) -> None:
        trace = self._traces.pop(mark, None)
        if trace is not None:
            if trace.ends is not None:
                trace.ends.cancel()
            self._engine.subscriptions.leave(trace.subscriber)

    def close(self) -> None:
        """The client has gone."""
        self._closed = True
        for mark in list(self._traces):
            self._end(mark)


def _may_publish(user: UserRights, topic: bytes) -> bool:
    return not topic.startswith(b"$") and user.of_topics.may_write(topic)


def _given(subscriber: PacedSubscriber, group: int, offset: int) -> str:
    session = subscriber.session
    flights: Sequence[Any] = [*session.unacknowledged.values(), *session.pending.values()]
    return "sent" if any([each[0] == group and each[1] == offset for each in flights]) else "given"


async def _within(work: asyncio.Future[Any], what: str) -> Any:
    try:
        async with asyncio.timeout(LASTS_S):
            return await asyncio.shield(work)
    except TimeoutError:
        raise UnavailableError(f"{what} within {LASTS_S:.0f} s") from None
