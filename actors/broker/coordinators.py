"""The coordinators as a broker reaches them: a pipeline to each, found by group or topic; asked until they answer.

Inwards `publish` gives publications to the pipeline of their topic's group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from lexicast.cluster.blocks import RAW
from lexicast.cluster.errors import IndexNotReadyError, LedElsewhereError, UnavailableError
from lexicast.cluster.membership import Member
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.names import is_wildcard

from .filters import concerns_all, gathered
from .pipelines.entries import Done, SealedEntry
from .pipelines.pipeline import Pipeline

ASK_AGAIN_S = 0.01
# How often it is looked whether somebody else leads what is waited for.
LOOK_AGAIN_S = 0.1


class Coordinators:
    """See the module's docstring. `pipelines` by the coordinators' names."""

    def __init__(self, groups: int, routes_max: int, request_timeout_s: float) -> None:
        """`groups`: how many the cluster has; `routes_max`: topics whose pipeline is remembered."""
        self.groups = groups
        self.pipelines: dict[str, Pipeline] = {}
        self.published_records = 0
        self._routes_max = routes_max
        self.request_timeout_s = request_timeout_s
        self._by_group: dict[int, Pipeline] = {}
        # The pipelines of those that lead something.
        self._leading: dict[Pipeline, None] = {}
        # Groups that the coordination server names no leader of.
        self._unled: set[int] = set()
        # Of each group the newest epoch that a coordinator has told.
        self._epochs: dict[int, int] = {}
        self._routes: dict[bytes, tuple[int, Pipeline]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(
        self, members: Collection[Member], make: Callable[[Member], Pipeline], leaders: Mapping[int, str] | None = None
    ) -> None:
        """The coordinators that there are now; `leaders`: by group, as the coordination server has it. What the
        coordinators themselves have said of their groups (`lead`) is newer."""
        for member in members:
            pipeline = self.pipelines.get(member.name)
            if pipeline is None:
                pipeline = self.pipelines[member.name] = make(member)
            pipeline.member = member
            if leaders is None:
                for group in member.groups:
                    self._by_group.setdefault(group, pipeline)
        if leaders is not None:
            self._unled = {group for group, name in leaders.items() if not name}
        for group, name in (leaders or {}).items():
            if name in self.pipelines and group not in self._epochs:
                self._by_group[group] = self.pipelines[name]
        self._changed()
        self._end_of_others({member.name for member in members})

    def _end_of_others(self, names: Collection[str]) -> None:
        """Coordinators that are gone, and of which nothing is waited for, are dialled no more."""
        for name, pipeline in list(self.pipelines.items()):
            if name not in names and pipeline not in self._leading and not pipeline.unanswered_bytes:
                del self.pipelines[name]
                task = asyncio.get_running_loop().create_task(pipeline.close())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    def news(self, pipeline: Pipeline, leads: Mapping[int, int]) -> dict[int, int]:
        """Those of `leads` (group -> epoch) that are newer than what is known, or were not known to be led there."""
        known, by_group = self._epochs, self._by_group
        return {
            group: epoch
            for group, epoch in leads.items()
            if epoch > known.get(group, 0) or (epoch == known.get(group) and by_group.get(group) is pipeline)
        }

    def lead(self, pipeline: Pipeline, leads: Mapping[int, int]) -> list[int]:
        """The coordinator of `pipeline` serves these groups, under epochs that are the newest known: what others have
        not answered of them goes to it. Returns those that others were thought to lead."""
        moved: dict[Pipeline, list[int]] = {}
        for group, epoch in leads.items():
            self._epochs[group] = epoch
            before = self._by_group.get(group)
            if before is not None and before is not pipeline:
                moved.setdefault(before, []).append(group)
            self._by_group[group] = pipeline
        self._changed()
        pipeline.lead(leads.keys())
        for before, groups in moved.items():
            pipeline.take_over(*before.give_up(set(groups)))
            before.suspect()
        return [group for groups in moved.values() for group in groups]

    @property
    def complete(self) -> bool:
        """Whether every group has a coordinator."""
        return len(self._by_group) == self.groups

    @property
    def unled(self) -> set[int]:
        """Groups that nobody is known to lead: the coordination server has lost who does, and waits for somebody."""
        return self._unled.difference(self._by_group)

    def leading(self) -> set[Pipeline]:
        """The pipelines of coordinators that lead something."""
        return set(self._leading)

    def _changed(self) -> None:
        """Who leads what is another one now."""
        self._routes.clear()
        self._leading = dict.fromkeys(self._by_group.values())

    @property
    def full(self) -> bool:
        """Whether some pipeline is full: publishers are not read then."""
        return any([pipeline.full for pipeline in self.pipelines.values()])

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*[pipeline.close() for pipeline in self.pipelines.values()])

    # -- who is concerned

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""
        return self._by_group.get(group)

    def by_leader(self, groups: Iterable[int]) -> dict[Pipeline, list[int]]:
        """These groups by the pipelines to their leaders, those aside that nobody leads."""
        found: dict[Pipeline, list[int]] = {}
        for group in groups:
            pipeline = self._by_group.get(group)
            if pipeline is not None:
                found.setdefault(pipeline, []).append(group)
        return found

    def leader_of(self, group: int) -> Pipeline:
        """The pipeline to the leader of `group`. Raises UnavailableError when there is none."""
        pipeline = self._by_group.get(group)
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {group} now")
        return pipeline

    def pipelines_of(self, topic_filter: bytes) -> list[Pipeline]:
        """The pipelines that a filter concerns. Raises UnavailableError when nobody leads its one group."""
        if is_wildcard(topic_filter):
            return list(self._leading)
        return [self.leader_of(topic_group(topic_filter, self.groups))]

    def groups_of_all(self, filters: Iterable[bytes]) -> Collection[int]:
        """The groups that some of these filters concern."""
        filters = list(filters)
        if concerns_all(filters):
            return range(self.groups)
        return {topic_group(name, self.groups) for name in filters}

    # -- publishing

    def publish(
        self,
        topic: bytes,
        flags: int,
        payloads: list[bytes],
        origin: str,
        done: Done | None = None,
        mark: tuple[bytes, int, list[int]] | None = None,
        encoding: int = RAW,
        dictionary: int | None = None,
        expiry_ms: int = 0,
        properties: dict[int, Any] | None = None,
    ) -> Pipeline:
        """Publications that differ only in payload; `done` gets the result of the entry that holds them, `mark` is the
        session, its generation and the packet ids of what is of QoS 2.

        Returns the pipeline: the caller stops reading its publisher while that is `full`. Raises UnavailableError.
        """
        route = self._routes.get(topic)
        if route is None:
            route = self._route(topic)
        group, pipeline = route
        pipeline.publish(group, topic, flags, payloads, origin, done, mark, encoding, dictionary, expiry_ms, properties)
        self.published_records += len(payloads)
        return pipeline

    def _route(self, topic: bytes) -> tuple[int, Pipeline]:
        group = topic_group(topic, self.groups)
        pipeline = self.leader_of(group)
        if len(self._routes) >= self._routes_max:
            self._routes.clear()
        route = self._routes[topic] = (group, pipeline)
        return route

    def group_of(self, topic: bytes) -> int:
        """The group of a topic. Raises UnavailableError when nobody leads it."""
        return (self._routes.get(topic) or self._route(topic))[0]

    def forward(self, entry: SealedEntry, count: int) -> Pipeline:
        """An entry of `count` records that a Python client made. Raises UnavailableError."""
        pipeline = self.leader_of(entry.wire[0])
        self.published_records += count
        pipeline.forward(entry)
        return pipeline

    # -- questions

    async def ask_all(self, topic_filter: bytes, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """`ask` each coordinator that the filter concerns; when one fails, none is taken any more."""
        await gathered([self.ask(p, take, method, *arguments) for p in self.pipelines_of(topic_filter)])

    async def ask(self, pipeline: Pipeline, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """Ask until it is answered; `take(result)` runs while the answer is taken off the link.

        Raises UnavailableError when that takes longer than `link.request_timeout_s`; LedElsewhereError, at once, when
        the coordinator leads nothing any more, or not what was asked for; IndexNotReadyError is an answer.
        """
        wait_s = self.request_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                await self._ask_again(pipeline, take, method, *arguments)
        except TimeoutError:
            raise UnavailableError(f"{pipeline.member.name} has not answered {method} for {wait_s:.0f} s") from None

    async def _ask_again(self, pipeline: Pipeline, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        while True:
            await self._linked(pipeline)
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: Exception | None, result: Any, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    if error is None:
                        take(result)
                    answered.set_result(None) if error is None else answered.set_exception(error)

            pipeline.call(done, method, *arguments)
            try:
                await answered
            except (IndexNotReadyError, LedElsewhereError):
                raise
            except UnavailableError:
                pass
            else:
                return
            await asyncio.sleep(ASK_AGAIN_S)

    async def _linked(self, pipeline: Pipeline) -> None:
        """Return when the link stands. Raises LedElsewhereError when its coordinator leads nothing (any more)."""
        while True:
            if pipeline not in self._leading:
                raise LedElsewhereError(f"{pipeline.member.name} leads no topic group now")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await pipeline.wait_linked()
                    return

    async def offsets_at(self, filters: Collection[bytes], time_us: int) -> dict[int, int]:
        """The first offset at or after a time in each group that some of these filters concern; each coordinator is
        asked once. Raises UnavailableError."""
        wanted, found = sorted(self.groups_of_all(filters)), dict[int, int]()
        async with asyncio.timeout(self.request_timeout_s):
            while left := [group for group in wanted if group not in found]:
                for group in left:
                    self.leader_of(group)
                by_leader = self.by_leader(left).items()
                try:
                    await gathered([self.ask(p, found.update, "offsets_at", g, time_us) for p, g in by_leader])
                    continue
                except LedElsewhereError:
                    pass
                await asyncio.sleep(ASK_AGAIN_S)
        return found
