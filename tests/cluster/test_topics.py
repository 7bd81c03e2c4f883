"""Topic names, filters, the trie against a matcher written from the standard's text, and escaped families."""

from __future__ import annotations

import random
import re
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import TopicError
from lexicast.cluster.topics.names import (
    DICTIONARY_PREFIX,
    FILTER_LEVELS_MAX,
    TOPIC_BYTES_MAX,
    TopicTrie,
    check_filter,
    check_topic,
    dictionary_topic,
    escape_family,
    is_wildcard,
    matches,
    shared,
    unescape_family,
)

GOOD_TOPICS = [
    b"a",
    b"/",
    b"//",
    b"a/b",
    "Zürich/Höhe".encode(),
    b"$SYS/x",
    b" ",
    b"\xef\xbb\xbfa",
    b"x" * TOPIC_BYTES_MAX,
]
BAD_TOPICS = [
    (b"", "empty"),
    (b"a\0b", "U+0000"),
    (b"a/+", "wildcard"),
    (b"#", "wildcard"),
    (b"a+", "wildcard"),
    (b"x" * (TOPIC_BYTES_MAX + 1), "65535"),
    (b"a\xff", "UTF-8"),
    (b"\xed\xa0\x80", "UTF-8"),  # a surrogate
    (b"\xc0\xaf", "UTF-8"),  # an overlong "/"
]
GOOD_FILTERS = [b"#", b"+", b"a/#", b"+/+", b"/+", b"+/", b"a/+/b/#", b"$share", b"/" * TOPIC_BYTES_MAX]
BAD_FILTERS = [
    (b"a#", "'#' must be alone"),
    (b"a/b#", "'#' must be alone"),
    (b"#/a", "only be the last"),
    (b"a/#/b", "only be the last"),
    (b"##", "only be the last"),
    (b"a+", "'+' must be alone"),
    (b"a/+b/c", "'+' must be alone"),
    (b"++", "'+' must be alone"),
    (b"+/" * FILTER_LEVELS_MAX + b"#", "levels"),
]


@pytest.mark.parametrize("topic", GOOD_TOPICS)
def test_topics_that_are_allowed(topic: bytes) -> None:
    check_topic(topic)
    check_filter(topic)


@pytest.mark.parametrize(("topic", "says"), BAD_TOPICS)
def test_topics_that_are_refused(topic: bytes, says: str) -> None:
    with pytest.raises(TopicError, match=re.escape(says)) as caught:
        check_topic(topic)
    assert len(str(caught.value)) < 300
    if "wildcard" not in says:
        with pytest.raises(TopicError, match=re.escape(says)):
            check_filter(topic)


@pytest.mark.parametrize("filter", GOOD_FILTERS)
def test_filters_that_are_allowed(filter: bytes) -> None:
    check_filter(filter)


@pytest.mark.parametrize(("filter", "says"), BAD_FILTERS)
def test_filters_that_are_refused(filter: bytes, says: str) -> None:
    with pytest.raises(TopicError, match=re.escape(says)):
        check_filter(filter)


@given(st.binary(max_size=30))
def test_any_bytes_are_allowed_or_refused_with_a_topic_error(data: bytes) -> None:
    for check in (check_topic, check_filter, shared, escape_family, unescape_family):
        with suppress(TopicError):
            check(data)


# The examples of the standard's sections 4.7.1 and 4.7.2.
@pytest.mark.parametrize(
    ("filter", "topic", "wanted"),
    [
        (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/ranking", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/score/wimbledon", True),
        (b"sport/#", b"sport", True),
        (b"#", b"anything/at/all", True),
        (b"sport/tennis/+", b"sport/tennis/player1", True),
        (b"sport/tennis/+", b"sport/tennis/player1/ranking", False),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"#", b"$SYS/monitor", False),
        (b"+/monitor/Clients", b"$SYS/monitor/Clients", False),
        (b"$SYS/#", b"$SYS/monitor", True),
        (b"$SYS/monitor/+", b"$SYS/monitor/Clients", True),
        (b"a/+/#", b"a/$b/c", True),
        (b"Accounts", b"ACCOUNTS", False),
    ],
)
def test_the_standards_examples(filter: bytes, topic: bytes, wanted: bool) -> None:
    assert matches(filter, topic) is wanted
    trie: TopicTrie[str, int] = TopicTrie()
    trie.insert(filter, "k", 1)
    assert trie.match(topic) == ([("k", 1)] if wanted else [])


def by_the_book(filter: list[str], topic: list[str]) -> bool:
    """Section 4.7 as a recursion over levels."""
    if not filter:
        return not topic
    if filter[0] == "#":
        return True
    return bool(topic) and filter[0] in ("+", topic[0]) and by_the_book(filter[1:], topic[1:])


LEVEL = st.sampled_from(["a", "b", "", "$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=5).filter(lambda levels: levels != [""])
FILTER = st.tuples(
    st.lists(LEVEL | st.just("+"), max_size=5), st.sampled_from([[], ["#"]])
).map(lambda parts: parts[0] + parts[1]).filter(lambda levels: levels not in ([], [""]))  # fmt: skip
OPERATION = st.tuples(st.booleans(), FILTER, st.integers(0, 3), st.integers(0, 9))


def encode(levels: list[str]) -> bytes:
    return "/".join(levels).encode()


@given(st.lists(OPERATION, max_size=40), st.lists(TOPIC, min_size=1, max_size=10))
@example([(True, ["#"], 0, 0)], [["$x"]])
@example([(True, ["a", "#"], 0, 0), (False, ["a", "#"], 0, 0)], [["a"]])
def test_the_trie_is_the_book(operations: list[tuple[bool, list[str], int, int]], topics: list[list[str]]) -> None:
    trie: TopicTrie[int, int] = TopicTrie()
    model: dict[tuple[bytes, int], int] = {}
    for insert, levels, key, value in operations:
        filter, version = encode(levels), trie.version
        check_filter(filter)
        if insert:
            trie.insert(filter, key, value)
            model[filter, key] = value
            assert trie.version > version
        else:
            was_there = model.pop((filter, key), None) is not None
            assert trie.remove(filter, key) is was_there
            assert (trie.version > version) is was_there
    assert len(trie) == len(model)
    assert sorted(trie.filters()) == sorted({filter for filter, _ in model})
    for topic in topics:
        wanted = []
        for (filter, key), value in model.items():
            hidden = topic[0].startswith("$") and filter[:1] in (b"+", b"#")
            hit = by_the_book(filter.decode().split("/"), topic) and not hidden
            assert matches(filter, encode(topic)) is hit
            wanted += [(key, value)] * hit
        assert sorted(trie.match(encode(topic))) == sorted(wanted)
    for filter, key in model:
        assert trie.remove(filter, key)
    assert len(trie) == 0
    assert trie._root.empty(), "empty branches are cut off"
    assert not trie._exact


def test_the_trie_survives_the_deepest_topics() -> None:
    trie: TopicTrie[str, int] = TopicTrie()
    deepest = b"+/" * (FILTER_LEVELS_MAX - 1)
    trie.insert(deepest + b"#", "rest", 1)
    trie.insert(deepest + b"+", "here", 2)
    assert sorted(trie.match(b"/" * (FILTER_LEVELS_MAX - 1))) == [("here", 2), ("rest", 1)]
    assert trie.match(b"/" * TOPIC_BYTES_MAX) == [("rest", 1)]
    assert trie.match(b"/" * FILTER_LEVELS_MAX) == [("rest", 1)]
    assert len(trie) == 2
    with pytest.raises(TopicError, match="levels"):
        trie.insert(deepest + b"+/+", "deeper", 3)
    assert len(trie) == 2


def test_many_exact_filters_do_not_touch_each_other() -> None:
    trie: TopicTrie[int, None] = TopicTrie()
    filters = [b"d/%d" % n for n in range(2_000)]
    order = random.Random(1).sample(filters, len(filters))
    for key, filter in enumerate(order):
        trie.insert(filter, key, None)
    assert all(trie.match(filter) == [(key, None)] for key, filter in enumerate(order))
    assert all(trie.remove(filter, key) for key, filter in enumerate(order) if key % 2)
    assert all(trie.match(filter) == ([] if key % 2 else [(key, None)]) for key, filter in enumerate(order))


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        (b"$share/g/a/+", ("g", b"a/+")),
        (b"$share/g//", ("g", b"/")),
        (b"$shared/g/a", None),
        (b"a/$share/g", None),
        (b"#", None),
    ],
)
def test_shared_subscriptions_are_recognised(filter: bytes, wanted: tuple[str, bytes] | None) -> None:
    assert shared(filter) == wanted


@pytest.mark.parametrize(
    "filter", [b"$share", b"$share/", b"$share/g", b"$share/g/", b"$share//a", b"$share/+/a", b"$share/g#/a"]
)
def test_malformed_shared_subscriptions_are_refused(filter: bytes) -> None:
    with pytest.raises(TopicError):
        shared(filter)


FAMILY = st.lists(st.sampled_from(["a", "%", "%2B", "é", "", "+", "%%25"]), min_size=1, max_size=6).filter(
    lambda levels: levels != [""]
)


@given(FAMILY)
def test_families_come_back(levels: list[str]) -> None:
    family = encode(levels)
    escaped = escape_family(family)
    check_topic(dictionary_topic(family))
    assert not is_wildcard(escaped)
    assert escaped.count(b"/") == family.count(b"/")
    assert unescape_family(escaped) == family


def test_an_escaped_family_reads_well() -> None:
    assert dictionary_topic(b"devices/+/telemetry") == b"$sdc/devices/%2B/telemetry"


@pytest.mark.parametrize("escaped", [b"%", b"a%2", b"%2b", b"%41", b"a/+", b"", b"a#", b"%23/a"])
def test_what_is_no_escaped_family_is_refused(escaped: bytes) -> None:
    with pytest.raises(TopicError):
        unescape_family(escaped)


def test_a_family_that_does_not_fit_below_the_prefix_is_refused() -> None:
    room = TOPIC_BYTES_MAX - len(DICTIONARY_PREFIX)
    assert len(dictionary_topic(b"x" * room)) == TOPIC_BYTES_MAX
    for family in (b"x" * (room + 1), b"%" * (room // 3 + 1)):
        with pytest.raises(TopicError, match=str(room)):
            escape_family(family)


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(time_us=1_000)
    clock.advance(1.5)
    assert (clock.time_us(), clock.monotonic()) == (1_501_000, 1.5)
    clock.jump(-1)
    assert (clock.time_us(), clock.monotonic()) == (501_000, 1.5)
    with pytest.raises(ValueError, match="jump"):
        clock.advance(-1)
