"""The fan-out of subscribers with conditions: a block's publications find those whose condition holds.

Beside `fanout`, which knows nothing of conditions. The subscriptions to a topic filter lie by their condition:
subscribers that share condition, kind and grant are a `Cohort`, and get the same bytes. One that comes or goes changes
its cohort alone, however many there are. A subscriber with a condition among its subscriptions is here with all of
them, since those that overlap deliver a publication once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.topics.names import TopicTrie, is_wildcard

from ..encoding import BlockView, Encoder, Grant, Kind
from ..granted_filters import join_grants
from ..security.rights import Rights
from ..subscriber import Subscriber
from .choosing import Pick, choice_of
from .giving import Cohort, Giving
from .predicate_table import PredicateTable

# So many conditions of a block's topics are asked one by one; more are looked up.
ASKED_MAX = 16


class FilterSubscriptions:
    """The subscriptions of one topic filter, by their condition's number."""

    __slots__ = ("cohorts", "conditions", "residual")

    def __init__(self) -> None:
        self.cohorts: dict[int, dict[tuple[Kind, Grant], Cohort]] = {}
        self.conditions: dict[int, Predicate] = {}
        # Those that no index helps.
        self.residual: dict[int, Predicate] = {}

    def add(
        self, subscriber: Subscriber, granted: Collection[bytes], grant: Grant, number: int, is_residual: bool
    ) -> None:
        """A subscription of one that has all of `granted`, also of those to come."""
        of_condition = self.cohorts.get(number)
        if of_condition is None:
            of_condition = self.cohorts[number] = {}
            if grant.where is not None:
                self.conditions[number] = grant.where
                if is_residual:
                    self.residual[number] = grant.where
        key = subscriber.kind, grant
        cohort = of_condition.get(key)
        if cohort is None:
            cohort = of_condition[key] = Cohort(subscriber.kind, grant)
        cohort.members[subscriber] = granted

    def drop(self, subscriber: Subscriber, grant: Grant, number: int) -> None:
        """It has ended."""
        of_condition = self.cohorts[number]
        key = subscriber.kind, grant
        cohort = of_condition[key]
        del cohort.members[subscriber]
        if not cohort.members:
            del of_condition[key]
            if not of_condition:
                del self.cohorts[number]
                self.conditions.pop(number, None)
                self.residual.pop(number, None)


class ContentFanout:
    """See the module's docstring. `topics_max`: of so many topics it is known which filters match; `rights`: nobody
    gets what it may not read, whatever its conditions."""

    def __init__(self, predicates: PredicateTable, topics_max: int, rights: Rights | None = None) -> None:
        self._rights = rights
        self.predicates = predicates
        self._topics_max = topics_max
        self._of_filters: dict[bytes, FilterSubscriptions] = {}
        self._granted: dict[Subscriber, dict[bytes, Grant]] = {}
        self._trie: TopicTrie[FilterSubscriptions, None] = TopicTrie()
        self._of_topic: dict[bytes, tuple[FilterSubscriptions, ...]] = {}
        # Publications of topics that somebody here is subscribed to, and those of them that nobody got.
        self.matched = 0
        self.skipped = 0
        self._looked_s = 0.0

    def __len__(self) -> int:
        return len(self._granted)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._granted

    # -- subscribers come and go

    def insert(self, wanted: Mapping[bytes, Grant], subscriber: Subscriber) -> None:
        """Subscribe, or replace the grants."""
        predicates, granted = self.predicates, self._granted.setdefault(subscriber, {})
        for name, grant in wanted.items():
            before = granted.get(name)
            of_filter = self._of_filters.get(name)
            if of_filter is None:
                of_filter = self._of_filters[name] = FilterSubscriptions()
                self._trie.insert(name, of_filter, None)
                self._forget_topics(name)
            if grant.where is not None:
                predicates.hold(grant.where)
            number = predicates.number(grant.where)
            of_filter.add(subscriber, granted, grant, number, predicates.is_residual(number))
            if before is not None and before != grant:
                of_filter.drop(subscriber, before, predicates.number(before.where))
            if before is not None and before.where is not None:
                predicates.release(before.where)
            granted[name] = grant

    def remove(self, filters: Iterable[bytes], subscriber: Subscriber) -> None:
        """Unsubscribe."""
        granted = self._granted.get(subscriber)
        if granted is None:
            return
        for name in filters:
            grant = granted.pop(name, None)
            if grant is None:
                continue
            of_filter = self._of_filters[name]
            of_filter.drop(subscriber, grant, self.predicates.number(grant.where))
            if grant.where is not None:
                self.predicates.release(grant.where)
            if not of_filter.cohorts:
                del self._of_filters[name]
                self._trie.remove(name, of_filter)
                self._forget_topics(name)
        if not granted:
            del self._granted[subscriber]

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "subscribers": len(self),
            "matched_records": self.matched,
            "skipped_records": self.skipped,
            "us_a_record": round(1e6 * self._looked_s / max(1, self.matched + self.skipped), 2),
            **self.predicates.status(),
        }

    def _forget_topics(self, changed: bytes) -> None:
        if is_wildcard(changed):
            self._of_topic.clear()
        else:
            self._of_topic.pop(changed, None)

    # -- looked up

    def of_filters(self, topic: bytes) -> tuple[FilterSubscriptions, ...]:
        """Those of the filters that match a topic."""
        found = self._of_topic.get(topic)
        if found is None:
            if len(self._of_topic) >= self._topics_max:
                self._of_topic.clear()
            found = self._of_topic[topic] = tuple([of_filter for of_filter, _ in self._trie.match(topic)])
        return found

    def subscribers(self, topic: bytes) -> Iterator[tuple[Subscriber, Grant]]:
        """The subscribers of a topic, whatever their conditions, with their grants."""
        found: dict[Subscriber, list[Grant]] = {}
        for of_filter in self.of_filters(topic):
            for of_condition in of_filter.cohorts.values():
                for cohort in of_condition.values():
                    for subscriber in cohort.members:
                        found.setdefault(subscriber, []).append(cohort.grant)
        for subscriber, grants in found.items():
            joined = join_grants(grants)
            assert joined is not None
            yield subscriber, joined

    # -- delivered

    def deliver(self, view: BlockView, encoder: Encoder) -> int:
        """Send a live block's publications to those whose conditions hold; the number of publications sent."""
        # Of most blocks nothing is wanted, and their topics are known: so much those pay who have no condition.
        known, of_filters = self._of_topic, self.of_filters
        concerned = [known[topic] if topic in known else of_filters(topic) for topic in view.block.meta.topics]
        if not any(concerned):
            return 0
        hits = self._hits(view, encoder, concerned)
        giving = Giving(view, encoder)
        hidden = self._hidden(view, encoder, hits) if self._rights is not None and self._rights.restricted else {}
        several: dict[Subscriber, list[Cohort]] = {}
        sent = 0
        for cohort, records in hits.items():
            alone = list[Subscriber]()
            for subscriber, filters in cohort.members.items():
                if len(filters) == 1 and subscriber not in hidden:
                    alone.append(subscriber)
                else:
                    several.setdefault(subscriber, []).append(cohort)
            if alone:
                sent += giving.of_one(cohort, records, alone)
        shares: dict[tuple[tuple[Cohort, ...], frozenset[int]], list[Subscriber]] = {}
        for subscriber, cohorts in several.items():
            shares.setdefault((tuple(cohorts), hidden.get(subscriber, _NO_RECORDS)), []).append(subscriber)
        for (together, left_out), subscribers in shares.items():
            picks = [pick for pick in _picks(together, hits) if pick[0] not in left_out]
            if picks:
                sent += giving.of_several(picks, subscribers)
        return sent

    @staticmethod
    def _hidden(
        view: BlockView, encoder: Encoder, hits: Mapping[Cohort, Sequence[int]]
    ) -> dict[Subscriber, frozenset[int]]:
        """The records that subscribers may not read, of those who may not read all that their conditions hold for."""
        topics, runs = view.block.meta.topics, choice_of(view, encoder).runs
        hidden: dict[Subscriber, frozenset[int]] = {}
        for cohort, records in hits.items():
            by_topic: dict[int, list[int]] = {}
            for number in records:
                by_topic.setdefault(runs[number].topic, []).append(number)
            for subscriber in cohort.members:
                rights = subscriber.rights
                for topic, of_topic in by_topic.items():
                    if rights is not None and not rights.may_read(topics[topic]):
                        hidden[subscriber] = hidden.get(subscriber, _NO_RECORDS).union(of_topic)
        return hidden

    def _hits(
        self, view: BlockView, encoder: Encoder, concerned: Sequence[tuple[FilterSubscriptions, ...]]
    ) -> dict[Cohort, list[int]]:
        """By cohort the records that it gets, in ascending order."""
        runs = choice_of(view, encoder).runs
        asked = [number for number, run in enumerate(runs) if concerned[run.topic]]
        began_s = time.perf_counter()
        by_record = self._holding(view, encoder, asked, {each for some in concerned for each in some})
        self._looked_s += time.perf_counter() - began_s
        hits: dict[Cohort, list[int]] = {}
        for number in asked:
            conditions = (0, *by_record.get(number, ()))
            got = False
            for of_filter in concerned[runs[number].topic]:
                cohorts = of_filter.cohorts
                for condition in conditions:
                    for cohort in cohorts.get(condition, _NONE).values():
                        hits.setdefault(cohort, []).append(number)
                        got = True
            self.matched += got
            self.skipped += not got
        return hits

    def _holding(
        self, view: BlockView, encoder: Encoder, asked: Sequence[int], filters: Collection[FilterSubscriptions]
    ) -> dict[int, list[int]]:
        """By record the conditions that hold; perhaps others than those of these filters among them."""
        choice = choice_of(view, encoder)
        if sum([len(each.cohorts) for each in filters]) <= ASKED_MAX:
            some = {number: predicate for each in filters for number, predicate in each.conditions.items()}
            return self.predicates.holding_of(choice, asked, some)
        residual = {number: predicate for each in filters for number, predicate in each.residual.items()}
        return self.predicates.holding(choice, asked, residual)


_NONE: dict[tuple[Kind, Grant], Cohort] = {}
_NO_RECORDS: frozenset[int] = frozenset()


def _picks(cohorts: Sequence[Cohort], hits: Mapping[Cohort, Sequence[int]]) -> list[Pick]:
    """The records of these, each with the grants of those that get it."""
    granted: dict[int, tuple[Grant, ...]] = {}
    for cohort in cohorts:
        for record in hits[cohort]:
            granted[record] = (*granted.get(record, ()), cohort.grant)
    return sorted(granted.items())
