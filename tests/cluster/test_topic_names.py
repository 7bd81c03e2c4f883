"""Names in a tree: scans find exactly what filters match, resumed anywhere, whatever changes meanwhile."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import TopicError
from lexicast.cluster.topics import name_tree as topic_names
from lexicast.cluster.topics.name_tree import Path, TopicNames
from lexicast.cluster.topics.names import TopicIndex, all_filters, check_filter, matches

LEVELS = ["", "a", "b", "c", "$x", "dd"]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
filters = st.builds(
    lambda levels, rest: "/".join([*levels, "#"] if rest else levels).encode(),
    st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=4),
    st.booleans(),
).filter(lambda name: bool(name) and (b"+" in name or b"#" in name))


def scanned(names: TopicNames, topic_filter: bytes, steps: int) -> list[bytes]:
    """All that a scan finds, in parts of `steps`."""
    found: list[bytes] = []
    after: Path | None = None
    for _ in range(100_000):
        part, after = names.scan(topic_filter, after, steps)
        found += part
        if after is None:
            return found
    raise AssertionError("a scan does not end")


@pytest.mark.parametrize("flat", [512, 2])
@given(held=st.lists(topics, max_size=30), gone=st.lists(topics, max_size=30), asked=filters, steps=st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_a_scan_finds_each_matching_name_once(
    flat: int, held: list[bytes], gone: list[bytes], asked: bytes, steps: int
) -> None:
    check_filter(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_names, "FLAT_MAX", flat)
        names = TopicNames()
        for name in held:
            names.add(name)
        for name in gone:
            names.discard(name)
        left = set(held) - set(gone)
        assert len(names) == len(left)
        wanted = sorted(name for name in left if matches(asked, name))
        assert sorted(scanned(names, asked, 1_000_000)) == wanted
        assert sorted(scanned(names, asked, steps)) == wanted


@given(
    held=st.sets(topics, max_size=20), changes=st.lists(st.tuples(st.booleans(), topics), max_size=20), asked=filters
)
@settings(max_examples=300, deadline=None)
def test_what_stays_is_found_once_whatever_changes_during_a_scan(
    held: set[bytes], changes: list[tuple[bool, bytes]], asked: bytes
) -> None:
    names = TopicNames()
    for name in held:
        names.add(name)
    stays = held - {name for _, name in changes}
    found: list[bytes] = []
    after: Path | None = None
    for add, name in itertools.chain(changes, itertools.repeat((True, b"never/matched/by/anything"))):
        part, after = names.scan(asked, after, 1)
        found += part
        if after is None:
            break
        names.add(name) if add else names.discard(name)
    for name in stays:
        assert found.count(name) == matches(asked, name)


def test_a_wide_level_is_walked_in_parts() -> None:
    names = TopicNames()
    for number in range(3_000):
        names.add(b"dev/%d/state" % number)
    assert names.scan(b"dev/+/nothing", None, 1_000_000) == ([], None)
    first, after = names.scan(b"dev/+/state", None, 10)
    assert len(first) < 50
    assert after is not None
    assert len(scanned(names, b"dev/+/state", 10)) == len(set(scanned(names, b"dev/#", 7))) == 3_000


@given(held=st.lists(topics, max_size=30), asked=filters | topics)
@settings(max_examples=300, deadline=None)
def test_an_index_knows_which_topics_a_filter_matches(held: list[bytes], asked: bytes) -> None:
    index: TopicIndex[int] = TopicIndex()
    for number, name in enumerate(held):
        index.setdefault(name, number)
    assert sorted(index.match(asked)) == sorted(name for name in set(held) if matches(asked, name))
    for name in held:
        assert index.setdefault(name, -1) == index[name] == held.index(name)


# What a filter may not be, and what it may be, in one alphabet.
LETTERS = st.sampled_from([b"a", b"/", b"+", b"#", b"$", b"\0", b"\xc3", b"\xa4"])
any_filters = st.lists(st.lists(LETTERS, max_size=4).map(b"".join), max_size=4)


def passes(name: bytes) -> bool:
    try:
        check_filter(name)
    except TopicError:
        return False
    return True


@given(any_filters)
@settings(max_examples=500, deadline=None)
def test_many_filters_pass_together_if_each_does(chosen: list[bytes]) -> None:
    assert all_filters(chosen) == all(map(passes, chosen))


@pytest.mark.parametrize(
    ("name", "good"),
    [
        (b"/".join([b"+"] * 200), True),
        (b"/".join([b"+"] * 201), False),
        (b"x" * 65_535, True),
        (b"x" * 65_536, False),
    ],
)
def test_many_filters_keep_the_limits_of_one(name: bytes, good: bool) -> None:
    assert (all_filters([b"a/#", name, b"b"]), passes(name)) == (good, good)
