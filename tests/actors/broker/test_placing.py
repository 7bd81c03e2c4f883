"""Where a session that returns stands in each group, once its filters are placed: group by group, by the rule."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.broker.encoding import Grant, Kind
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.filters import Take
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config

GROUPS = 4
OFFSETS = st.integers(0, 3)
EACH = st.lists(OFFSETS, min_size=GROUPS, max_size=GROUPS)


@settings(max_examples=150, deadline=None)
@given(
    heads=EACH,
    ends=EACH,
    cuts=EACH,
    start=st.dictionaries(st.integers(0, GROUPS - 1), OFFSETS),
    behind=st.sets(st.integers(0, GROUPS - 1), max_size=1),
    names=st.sampled_from([(b"a/#",), (b"a/#", b"b")]),
)
def test_a_session_lags_where_something_was_published_since_or_comes_before_it_is_live(
    heads: list[int],
    ends: list[int],
    cuts: list[int],
    start: dict[int, int],
    behind: set[int],
    names: tuple[bytes, ...],
) -> None:
    cuts = [max(cut, end) for cut, end in zip(cuts, ends, strict=True)]
    heads = [max(head, 1) for head in heads]

    async def run() -> Subscriber:
        engine = BrokerEngine("broker-0", 1, GROUPS, Config(), SystemClock())
        subscriptions = engine.subscriptions
        subscriptions.live.heads.update(enumerate(heads))
        answer = {"cut": dict(enumerate(cuts)), "ends": dict(enumerate(ends)), "first": {}, "behind": list(behind)}

        async def place(filters: Any, everywhere: bool, take: Take) -> None:
            take(list(filters), answer)

        subscriptions.filters.place = cast(Any, place)  # type: ignore[method-assign]  # stands for the coordinators
        subscriber = Subscriber(subscriptions, Kind(4))
        subscriber.block()
        await subscriptions.subscribe(subscriber, dict.fromkeys(names, Grant(1)), start=dict(start))
        for group in range(GROUPS):
            heads[group] = subscriptions.live.heads[group]
        await engine.close()
        return subscriber

    subscriber = asyncio.run(run())
    lagging: dict[int, int] = {}
    past: dict[int, int] = {}
    for group in range(GROUPS):
        at = start.get(group)
        if at is None or (at >= ends[group] and group not in behind):
            at = max(cuts[group], at or 0)
        comes_from = cuts[group] if group in behind else ends[group]
        if at != heads[group] or group in behind:
            lagging[group] = at
            if at < comes_from:
                past[group] = comes_from
    assert subscriber.lagging == lagging
    assert subscriber.past == past
    assert subscriber.missed_live == lagging.keys() - past.keys()


async def test_an_answer_that_many_take_stays_what_it_was_when_another_coordinators_follows() -> None:
    engine = BrokerEngine("broker-0", 1, GROUPS, Config(), SystemClock())
    subscriptions = engine.subscriptions
    shared = {"cut": {0: 5, 1: 5}, "ends": {0: 5, 1: 4}, "first": {0: 1}, "behind": []}
    others = {"cut": {2: 7, 3: 7}, "ends": {2: 7, 3: 7}, "first": {3: 2}, "behind": [3]}

    async def place_at_one(filters: Any, everywhere: bool, take: Take) -> None:
        take(list(filters), shared)

    async def place_at_both(filters: Any, everywhere: bool, take: Take) -> None:
        take(list(filters), shared)
        take(list(filters), others)

    async def subscribed(place: Any) -> dict[int, int]:
        subscriptions.filters.place = cast(Any, place)  # type: ignore[method-assign]  # stands for the coordinators
        subscriber = Subscriber(subscriptions, Kind(4))
        subscriber.block()
        cuts = await subscriptions.subscribe(subscriber, {b"a/#": Grant(1)}, start={0: 2, 1: 2, 2: 2, 3: 2})
        assert set(cuts[b"a/#"]) == set(range(4 if place is place_at_both else 2))
        return subscriber.lagging

    alone = await subscribed(place_at_one)
    assert alone == {0: 2, 1: 2}
    assert await subscribed(place_at_both) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert await subscribed(place_at_one) == alone
    assert (shared["cut"], shared["ends"]) == ({0: 5, 1: 5}, {0: 5, 1: 4})
    await engine.close()
