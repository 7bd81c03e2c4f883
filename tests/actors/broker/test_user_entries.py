"""What a user's client says of its entries is not believed, and what may not be published is cut out of them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.python_clients.user_entries import UserEntries, results_with, without
from lexicast.actors.broker.security.rights import Rights
from lexicast.cluster.blocks import (
    PUBLICATIONS,
    RAW,
    RETAIN,
    Block,
    Mark,
    Meta,
    ProducerRun,
    Run,
    pack_meta,
    unpack_meta,
)
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import MESSAGES, WireEntry

PRODUCER = b"p" * 16
RULES = "user ada\ntopic readwrite mine/#\n"


def entries(rules: str | None = RULES) -> UserEntries:
    rights = Rights(has_rules=rules is not None)
    rights.update(rules, 1)
    return UserEntries(rights.client("ada", "c1"))


def made(runs: list[tuple[bytes, int]], flags: int = 0, sequence: int = 1) -> tuple[WireEntry, Meta, int]:
    """An entry of these runs (topic, count), whose payloads are numbers; its meta, and how many there are."""
    topics = tuple(dict.fromkeys([topic for topic, _ in runs]))
    count = sum([count for _, count in runs])
    meta = Meta(
        topics,
        tuple([Run(0, topics.index(topic), flags, RAW, 0, None, 0, count) for topic, count in runs]),
        (ProducerRun(PRODUCER, 1, sequence, count),),
        (),
        ("c1",),
        (),
    )
    payloads = [str(number).encode() for number in range(count)]
    return (3, pack_meta(meta), array("I", map(len, payloads)).tobytes(), b"".join(payloads)), meta, count


@pytest.mark.parametrize(
    "change",
    [
        {"origins": ("c2",)},
        {"origins": ("c1", "c1\0root")},
        {"marks": (Mark(0, b"s" * 16, 1, 1),)},
        {"producers": (ProducerRun(b"broker-0", 1, 1, 2),)},
        {"producers": (ProducerRun(PRODUCER, 1, 1, 1),)},
        {"producers": (ProducerRun(PRODUCER, 1, 1, 1), ProducerRun(PRODUCER, 1, 9, 1))},
        {"producers": ()},
        {"runs": (Run(5, 0, 0, RAW, 0, None, 0, 2),)},
    ],
)
def test_an_entry_that_names_somebody_else_is_refused(change: dict[str, Any]) -> None:
    _, meta, count = made([(b"mine/a", 2)])
    entries().check(meta, count)
    with pytest.raises(PeerError):
        entries().check(meta._replace(**change), count)


def test_a_link_has_one_producer() -> None:
    of, (_, meta, count) = entries(), made([(b"mine/a", 2)])
    of.check(meta, count)
    of.check(meta._replace(producers=(ProducerRun(PRODUCER, 1, 3, 2),)), count)
    for producer, incarnation in ((b"q" * 16, 1), (PRODUCER, 2)):
        with pytest.raises(PeerError, match="another producer"):
            of.check(meta._replace(producers=(ProducerRun(producer, incarnation, 1, 2),)), count)


def test_what_is_retained_says_whose_it_is() -> None:
    wire, meta, _ = made([(b"mine/a", 1), (b"mine/b", 1)], RETAIN)
    signed = unpack_meta(entries().signed(wire, meta)[1])
    assert signed.origins == ("c1\0ada",)
    assert {run.origin for run in signed.runs} == {0}
    assert entries(None).signed(wire, meta) is wire
    nobody = meta._replace(runs=tuple([run._replace(origin=-1) for run in meta.runs]), origins=())
    assert unpack_meta(entries().signed(wire, nobody)[1]).origins == ("c1\0ada",)
    live, live_meta, _ = made([(b"mine/a", 1)])
    assert entries().signed(live, live_meta) is live


def test_the_topics_of_the_cluster_are_nobodys() -> None:
    _, meta, _ = made([(b"$sdc/x", 1), (b"$sampling/x", 1), (b"mine/a", 1), (b"other", 1)])
    refused = entries().refused(meta)
    assert [*refused] == [0, 1, 3]
    assert refused[3] == "NotAuthorizedError: user 'ada' may not publish to 'other'"
    assert [*entries(None).refused(meta)] == [0, 1]


topics = st.sampled_from([b"mine/a", b"mine/b", b"other/a", b"other/b"])


@given(st.lists(st.tuples(topics, st.integers(1, 4)), min_size=1, max_size=8), st.integers(1, 1_000), st.data())
def test_what_is_left_is_what_may_be_published_under_its_own_numbers(
    runs: list[tuple[bytes, int]], sequence: int, data: st.DataObject
) -> None:
    wire, meta, count = made(runs, sequence=sequence)
    refused = entries().refused(meta)
    names = [topic for topic, many in runs for _ in range(many)]
    left = [number for number, topic in enumerate(names) if topic.startswith(b"mine/")]
    kept = without(wire, meta, refused) if refused else wire
    if kept is None:
        assert left == []
        return
    kept_meta = unpack_meta(kept[1])
    block = Block(3, 0, 0, len(left) - 1, 0, PUBLICATIONS, *kept[1:])
    assert [(record.topic, record.payload) for record in block.records()] == [
        (names[number], str(number).encode()) for number in left
    ]
    numbers = [p.sequence + at for p in kept_meta.producers for at in range(p.count)]
    assert numbers == [sequence + number for number in left]
    # What the coordinator says of these, in whatever runs, comes back record by record.
    cuts = data.draw(st.lists(st.integers(0, len(left)), max_size=3).map(sorted))
    ends = [*cuts, len(left)]
    result = tuple([(end - start, 7, 100 + start) for start, end in zip([0, *cuts], ends, strict=True) if end > start])
    told = results_with(meta, refused, result)
    assert MESSAGES[2][1]((told,))
    found: list[Any] = []
    for run in told:
        found += [run[1]] * run[0] if len(run) == 2 else range(run[2], run[2] + run[0])
    placed = iter(range(100, 100 + len(left)))
    expected = [
        next(placed) if number in left else refused[meta.topics.index(names[number])] for number in range(count)
    ]
    assert found == expected
    # And where all of it is refused there.
    assert sum([run[0] for run in results_with(meta, refused, "full")]) == count


def test_lengths_that_do_not_fit_are_not_cut() -> None:
    (group, packed, lengths, body), meta, _ = made([(b"mine/a", 1), (b"other", 1)])
    with pytest.raises(PeerError):
        without((group, packed, lengths, body + b"x"), meta, {1: "no"})
