"""Which of a broker's topic filters *choose*: all their subscribers have conditions that matchers know.

Of such a filter's publications the broker wants what matchers say that it may want; of all others everything.
Coordinators are told which choose (`choose`), and up to which number a matcher has to know this broker's conditions to
be believed. What makes them send less may be told late. What makes them send more is told, and answered, before the
subscription that needs it counts: a subscriber without a condition, or with one that is new.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate

from ..encoding import Grant
from ..filters import Filters, parts
from ..pipelines.pipeline import Pipeline
from ..subscriber import Subscriber
from .told_conditions import ToldConditions

SETTLES_S: Final = 0.05
_ANSWERS_KEPT: Final = 4_096


@lru_cache(_ANSWERS_KEPT)
def _is_indexed(predicate: Predicate) -> bool:
    return boxes_of(predicate.condition) is not None


class ChoosingFilters:
    """See the module's docstring. `filters`: the broker's; `pipelines()`: to all coordinators."""

    def __init__(self, told: ToldConditions, filters: Filters, pipelines: Callable[[], Iterable[Pipeline]]) -> None:
        self._told = told
        self._filters = filters
        self._pipelines = pipelines
        # The subscriptions that choose. Samples are such, whatever they are of: they take what comes.
        self._choosing: dict[Subscriber, dict[bytes, Predicate | None]] = {}
        self._choosers: Counter[bytes] = Counter()
        # Those whose conditions change, or go: what the new one is.
        self._changing: dict[tuple[Subscriber, bytes], Predicate | None] = {}
        self._leaving: Counter[bytes] = Counter()
        # What coordinators know to choose; what they have been told chooses no more, and have not answered; what may
        # have changed since.
        # In the order in which they came: what is told must not depend on hashes.
        self._chosen: dict[bytes, None] = {}
        self._ending: Counter[bytes] = Counter()
        self._unsettled: dict[bytes, None] = {}
        # Up to which number coordinators have been told, and have answered.
        self._answered = 0
        self._samples = 0
        self._tellings: set[asyncio.Task[None]] = set()
        self._settling: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._chosen)

    # -- subscriptions come and go

    def held(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant], names: Iterable[bytes]) -> None:
        """A subscriber gets filters that it did not have, which have been held just now."""
        for name in names:
            where = wanted[name].where
            if subscriber.samples:
                self._samples += 1
                self._chooses(subscriber, name, None)
            elif where is not None and _is_indexed(where):
                self._told.begin((name, where))
                self._chooses(subscriber, name, where)
            self._may_change(name)

    def _chooses(self, subscriber: Subscriber, name: bytes, where: Predicate | None) -> None:
        self._choosing.setdefault(subscriber, {})[name] = where
        self._choosers[name] += 1

    async def prepare(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant]) -> None:
        """Return when coordinators know what these subscriptions, which have been held, need to count."""
        own = self._choosing.get(subscriber, {})
        for name, grant in wanted.items():
            if name in own and own[name] != grant.where:
                self._change(subscriber, name, grant.where)
        # Of what ends only now others may be told already; they have not answered, so who comes second waits too.
        known = [name for name in wanted if name in self._chosen or name in self._ending]
        plain = [name for name in known if name in self._ending or not self._all_choose(name)]
        number = self._told.number
        if not plain and (not known or number <= self._answered):
            return
        self._told.tell()
        for name in plain:
            self._chosen.pop(name, None)
        self._ending.update(plain)
        telling = asyncio.get_running_loop().create_task(self._choose(plain, number))
        self._tellings.add(telling)
        telling.add_done_callback(self._tellings.discard)
        await asyncio.shield(telling)  # who waits may give up; what is under way is under way

    def _change(self, subscriber: Subscriber, name: bytes, where: Predicate | None) -> None:
        key = subscriber, name
        if key in self._changing:
            self._given_up(key)
        if where is not None and _is_indexed(where):
            self._told.begin((name, where))
            self._changing[key] = where
        else:
            self._leaving[name] += 1
            self._changing[key] = None

    def _given_up(self, key: tuple[Subscriber, bytes]) -> None:
        where = self._changing.pop(key)
        if where is not None:
            self._told.end((key[1], where))
        else:
            self._leaving[key[1]] -= 1

    def entered(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant]) -> None:
        """Subscriptions, new ones or changed ones, have begun."""
        own = self._choosing.get(subscriber, {})
        for name, grant in wanted.items():
            before = own.get(name)
            if name in own and (subscriber, name) in self._changing:
                after = self._changing.pop((subscriber, name))
                if before is not None:
                    self._told.end((name, before))
                if after is not None:
                    own[name] = after
                else:
                    self._leaving[name] -= 1
                    self._drop(subscriber, name)
            elif name not in own and grant.where is not None and _is_indexed(grant.where):
                self._told.begin((name, grant.where))
                self._chooses(subscriber, name, grant.where)
            self._may_change(name)

    def released(self, subscriber: Subscriber, names: Iterable[bytes]) -> None:
        """A subscriber's filters have been released."""
        own = self._choosing.get(subscriber, {})
        for name in names:
            if (subscriber, name) in self._changing:
                self._given_up((subscriber, name))
            if name in own:
                where = own[name]
                if where is not None:
                    self._told.end((name, where))
                else:
                    self._samples -= 1
                self._drop(subscriber, name)
            if name not in self._filters:
                self._chosen.pop(name, None)
            self._may_change(name)

    def _drop(self, subscriber: Subscriber, name: bytes) -> None:
        own = self._choosing[subscriber]
        del own[name]
        if not own:
            del self._choosing[subscriber]
        self._choosers[name] -= 1
        if not self._choosers[name]:
            del self._choosers[name]

    def _all_choose(self, name: bytes) -> bool:
        return self._choosers[name] == self._filters.count(name) > 0 and not self._leaving[name]

    # -- told to coordinators

    def _may_change(self, name: bytes) -> None:
        self._unsettled[name] = None
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLES_S, self._settle)

    def _settle(self) -> None:
        """Tell coordinators of filters that choose by now."""
        self._settling = None
        unsettled, self._unsettled = self._unsettled, {}
        fresh = []
        for name in unsettled:
            if name in self._chosen or not self._all_choose(name):
                continue
            if self._filters.is_settled([name]):
                fresh.append(name)
            else:
                self._may_change(name)
        if fresh:
            self._told.tell()
            self._chosen.update(dict.fromkeys(fresh))
            for pipeline in self._pipelines():
                self._tell(pipeline, fresh, ())

    def resumed(self, pipeline: Pipeline) -> None:
        """The link to a coordinator stands (again): there nothing chooses yet."""
        if self._chosen:
            self._tell(pipeline, self._chosen, ())

    async def _choose(self, end: Collection[bytes], number: int) -> None:
        """Tell all coordinators whose links stand; return when they have answered, or their links have ended."""
        answers = [a for p in self._pipelines() if p.link is not None for a in self._tell(p, (), end)]
        if answers:
            await asyncio.wait(answers)
        self._ending.subtract(end)
        self._ending += Counter()  # without those that nobody waits for
        self._answered = max(self._answered, number)

    def _tell(self, pipeline: Pipeline, begin: Collection[bytes], end: Collection[bytes]) -> list[asyncio.Future[None]]:
        answers = []
        nothing = list[bytes]()
        messages = [(part, nothing) for part in parts(list(begin))] + [(nothing, part) for part in parts(list(end))]
        for some, others in messages or [(nothing, nothing)]:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: Exception | None, _: Any, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    answered.set_result(None)

            pipeline.call(done, "choose", some, others, self._told.number, self._samples > 0)
            answers.append(answered)
        return answers

    def close(self) -> None:
        """Nothing is told any more."""
        if self._settling is not None:
            self._settling.cancel()
        for telling in self._tellings:
            telling.cancel()
        self._told.close()
