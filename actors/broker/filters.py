"""A broker's back-end subscriptions: one for each filter, however many subscribers it has here.

They are soft state at the coordinators: registered when the first subscriber comes, and again, all of them, whenever a
link begins. Also at coordinators that do not lead an exact filter's group: they may next, and then it has to be there.
`version` grows with each that is registered: what was read of the past for the broker's interest as of some version
serves subscribers whose filters were all there by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from lexicast.cluster.errors import LedElsewhereError, UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.requests import FILTERS_MAX
from lexicast.cluster.topics.names import is_wildcard

from ..link.link import Link
from .pipelines.pipeline import Pipeline

FILTER_BYTES_MAX = 64 * 1024

# Ask a coordinator until it answers; `take` runs while the answer is taken off the link.
Ask = Callable[..., Awaitable[None]]
Take = Callable[[list[bytes], Any], None]

# Returning sessions that one request serves: each takes its cuts from the answer in the same turn.
RETURNS_AT_ONCE = 50

# How long a subscription waits for a group that nobody leads, and how often it asks again.
LEADERLESS_S = 30.0
AGAIN_S = 0.01


class Return(NamedTuple):
    """A session that returns: its filters to be placed, and who takes the cuts."""

    filters: list[bytes]
    take: Take
    done: asyncio.Future[None]


class Topology(Protocol):
    """Which coordinators there are, and who leads what."""

    groups: int
    pipelines: dict[str, Pipeline]

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""


class Filters:
    """See the module's docstring. `concerned`: the pipelines of an exact filter, or of all wildcards."""

    def __init__(
        self,
        always: Iterable[bytes],
        concerned: Callable[[bytes], list[Pipeline]],
        ask: Ask,
        topology: Topology | None = None,
    ) -> None:
        """`topology`: None where there is one coordinator, and will be no other."""
        self._counts: dict[bytes, int] = dict.fromkeys(always, 1)
        self._versions: dict[bytes, int] = {}
        self._placing: dict[bytes, asyncio.Future[None]] = {}
        self._registered: dict[Pipeline, set[bytes]] = {}
        # Returns of this turn, which share their requests.
        self._returning: dict[Pipeline, list[Return]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._concerned = concerned
        self._ask = ask
        self._topology = topology
        self.version = 0

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._counts

    def count(self, topic_filter: bytes) -> int:
        """How many subscribers it has here."""
        return self._counts.get(topic_filter, 0)

    def names(self) -> list[bytes]:
        """All of them, as they are now."""
        return list(self._counts)

    def version_of(self, filters: Iterable[bytes]) -> int:
        """The version at which the last of these was registered."""
        versions = self._versions
        return max([versions.get(topic_filter, 0) for topic_filter in filters], default=0)

    def is_settled(self, filters: Iterable[bytes]) -> bool:
        """Whether none of these is being placed now."""
        return self._placing.keys().isdisjoint(filters)

    async def settled(self, filters: Iterable[bytes]) -> None:
        """Return once none of these is being placed for somebody else."""
        while waiting := {future for name in filters if (future := self._placing.get(name)) is not None}:
            await asyncio.wait(waiting)

    def hold(self, filters: Iterable[bytes]) -> list[bytes]:
        """One subscriber more to each; those that had none before have to be placed, and `placed` then."""
        counts, fresh = self._counts, []
        for topic_filter in filters:
            counts[topic_filter] = count = counts.get(topic_filter, 0) + 1
            if count == 1:
                fresh.append(topic_filter)
        if fresh:
            future = asyncio.get_running_loop().create_future()
            self._placing.update(dict.fromkeys(fresh, future))
        return fresh

    def placed(self, filters: Iterable[bytes]) -> None:
        """Those that `hold` returned are placed, or given up and released."""
        for name in filters:
            future = self._placing.pop(name, None)
            if future is not None and not future.done():  # those that `hold` returned together share one
                future.set_result(None)

    async def place(self, filters: Collection[bytes], everywhere: bool, take: Take) -> None:
        """Register filters with every coordinator concerned, in bounded parts; `take(part, answer)` for each answer.

        `everywhere`: each coordinator is asked for its cuts, also where no filter concerns it; those that do so in one
        turn share a request.
        """
        self.version += bool(filters)
        self._versions.update(dict.fromkeys(filters, self.version))
        if self._topology is None or len(self._topology.pipelines) < 2:
            await self._place_once(filters, everywhere, take)
            return
        self._register_elsewhere(filters, self._topology.pipelines.values())
        every = everywhere or concerns_all(filters)
        groups = self._topology.groups
        lacking = set(range(groups)) if every else {topic_group(name, groups) for name in filters}

        def taken(part: list[bytes], answer: Any) -> None:
            lacking.difference_update(answer["cut"])
            take(part, answer)

        async with asyncio.timeout(LEADERLESS_S):
            await self._place_once(filters, everywhere, taken)
            while lacking:
                # Groups that had no leader just then, or another one: their cuts are still to come.
                await asyncio.sleep(AGAIN_S)
                await self._place_once(filters, everywhere, taken, lacking)

    async def _place_once(
        self, filters: Collection[bytes], everywhere: bool, take: Take, lacking: Collection[int] | None = None
    ) -> None:
        """Ask every coordinator concerned once (`lacking`: only those that lead one of these groups); those that lead
        them no more are passed over."""
        by_pipeline: dict[Pipeline, list[bytes]] = {}
        leading = self._concerned(b"#")
        if lacking is not None and self._topology is not None:
            needed = {self._topology.pipeline_of(group) for group in lacking}
            leading = [pipeline for pipeline in leading if pipeline in needed]
        if everywhere:
            by_pipeline = {pipeline: [] for pipeline in leading}
        for topic_filter in filters:
            for pipeline in leading if is_wildcard(topic_filter) else self._concerned(topic_filter):
                if pipeline in leading:
                    by_pipeline.setdefault(pipeline, []).append(topic_filter)
        place = self._place_with_others if everywhere else self._place_at
        await gathered([_unless_moved(place(pipeline, part, take)) for pipeline, part in by_pipeline.items()])

    @staticmethod
    def _register_elsewhere(filters: Iterable[bytes], pipelines: Iterable[Pipeline]) -> None:
        """Also at coordinators that do not lead their groups now: nothing is waited for, since whatever
        they are asked later on their links comes after it."""
        names = list(filters)
        for pipeline in pipelines:
            for part in parts(names):
                pipeline.call(_ignore, "register", part)

    async def _place_at(self, pipeline: Pipeline, filters: list[bytes], take: Take) -> None:
        for part in parts(filters):

            def taken(result: Any, part: list[bytes] = part) -> None:
                take(part, result)

            await self._ask(pipeline, taken, "subscribe", part, False)

    async def _place_with_others(self, pipeline: Pipeline, filters: list[bytes], take: Take) -> None:
        for part in parts(filters) or [[]]:
            if self._closed:
                raise _stopping()
            returns = self._returning.get(pipeline)
            if returns is None:
                returns = self._returning[pipeline] = []
                self._spawn(self._place_returns(pipeline))
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            returns.append(Return(part, take, done))
            await done

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place_returns(self, pipeline: Pipeline) -> None:
        """Ask for those of one turn, as many at once as a request takes."""
        await asyncio.sleep(0)
        some: list[Return] = []
        filters, size = 0, 0
        for each in self._returning.pop(pipeline):
            filters, size = filters + len(each.filters), size + sum(map(len, each.filters))
            if some and (len(some) >= RETURNS_AT_ONCE or filters > FILTERS_MAX or size > FILTER_BYTES_MAX):
                self._spawn(self._place_some(pipeline, some))
                some, filters, size = [], len(each.filters), sum(map(len, each.filters))
            some.append(each)
        await self._place_some(pipeline, some)

    async def _place_some(self, pipeline: Pipeline, some: list[Return]) -> None:
        def taken(result: Any) -> None:
            for each in some:
                if not each.done.done():  # unless its connection is gone meanwhile
                    try:
                        each.take(each.filters, result)
                    except Exception as error:
                        each.done.set_exception(error)
                    else:
                        each.done.set_result(None)

        filters = [name for each in some if not each.done.done() for name in each.filters]
        try:
            await self._ask(pipeline, taken, "subscribe", filters, True)
        except Exception as error:
            _fail(some, error)
        finally:
            _fail(some, _stopping())
        # Of connections that are gone: their filters were released before the coordinator had them.
        self._end(pipeline, [name for name in filters if name not in self._counts])

    def release(self, filters: Iterable[bytes]) -> list[asyncio.Future[None]]:
        """One subscriber less to each; the last one ends the back-end subscription. Done when the coordinators have
        taken that, or are gone: who releases many waits for it now and then."""
        ended: dict[Pipeline, list[bytes]] = {}
        for topic_filter in filters:
            left = self._counts.get(topic_filter, 0) - 1
            if left > 0:
                self._counts[topic_filter] = left
            elif left == 0:
                del self._counts[topic_filter]
                self._versions.pop(topic_filter, None)
                for pipeline in self._concerned(b"#") if self._topology is None else self._topology.pipelines.values():
                    ended.setdefault(pipeline, []).append(topic_filter)
        return [done for pipeline, gone in ended.items() for done in self._end(pipeline, gone)]

    @staticmethod
    def _end(pipeline: Pipeline, filters: list[bytes]) -> list[asyncio.Future[None]]:
        answers: list[asyncio.Future[None]] = []
        for part in parts(filters):
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: Exception | None, _: Any, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    answered.set_result(None)

            pipeline.call(done, "unsubscribe", part)
            answers.append(answered)
        return answers

    def close(self) -> None:
        """Place nothing more; whoever waits for it is told."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for returns in self._returning.values():
            _fail(returns, _stopping())

    async def register(self, pipeline: Pipeline, link: Link) -> None:
        """All of them, on a link that begins: one part is under way while the next one is made."""
        done = self._registered[pipeline] = set()
        under_way: asyncio.Future[Any] | None = None
        while fresh := [name for name in self._counts if name not in done]:
            for at in range(0, len(fresh), FILTERS_MAX):
                some = fresh[at : at + FILTERS_MAX]
                done.update(some)
                for part in parts(some):
                    if under_way is not None:
                        await under_way
                    under_way = link.request("register", part)
        if under_way is not None:
            under_way.add_done_callback(lambda future: future.cancelled() or future.exception())

    def registered(self, pipeline: Pipeline) -> None:
        """The link stands: end what was registered on it and is not subscribed to any more, and register what was
        subscribed to after that."""
        done = self._registered.pop(pipeline, set())
        for part in parts([name for name in self._counts if name not in done]):
            pipeline.call(_ignore, "register", part)
        gone = [name for name in done if name not in self._counts]
        self._end(pipeline, gone)


async def _unless_moved(work: Awaitable[None]) -> None:
    """Who leads the groups no more has no cuts of them: whoever does is asked."""
    with suppress(LedElsewhereError):
        await work


def _ignore(error: Exception | None, _: Any) -> None:
    """A link that ends is begun anew, with all filters."""


def _stopping() -> UnavailableError:
    return UnavailableError("this broker is stopping")


def _fail(returns: Iterable[Return], error: Exception) -> None:
    """Tell those that have no answer yet. (Cancelling what they wait for would look as if they had been cancelled.)"""
    for each in returns:
        if not each.done.done():
            each.done.set_exception(error)


def parts(filters: list[bytes]) -> list[list[bytes]]:
    """Requests' worth of filters: FILTERS_MAX of them, FILTER_BYTES_MAX bytes (and one that is longer alone)."""
    found: list[list[bytes]] = []
    room = 0
    for topic_filter in filters:
        if not found or room < len(topic_filter) or len(found[-1]) >= FILTERS_MAX:
            found.append([])
            room = FILTER_BYTES_MAX
        found[-1].append(topic_filter)
        room -= len(topic_filter)
    return found


def concerns_all(filters: Iterable[bytes]) -> bool:
    """Whether a filter among these concerns every group."""
    return any(map(is_wildcard, filters))


async def gathered(calls: Iterable[Awaitable[None]]) -> None:
    """All of `calls`; when one fails the others are given up, and nothing of theirs is taken any more."""
    calls = list(calls)
    if len(calls) == 1:
        await calls[0]
        return
    tasks = [asyncio.ensure_future(call) for call in calls]
    failure: BaseException | None = None
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:
        failure = error
    if failure is not None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise failure
