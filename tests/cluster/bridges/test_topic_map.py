"""Topics as they are called on the other side of a bridge, and filters of which some topic matches both."""

from __future__ import annotations

import itertools

import pytest

from lexicast.cluster.bridges.definitions import BridgedTopic
from lexicast.cluster.bridges.topic_map import TopicMap, overlap
from lexicast.cluster.topics.names import matches

LEVELS = ("a", "b", "+", "#")
FILTERS = [
    "/".join(levels)
    for count in (1, 2, 3)
    for levels in itertools.product(LEVELS, repeat=count)
    if "#" not in levels[:-1]
]
# With a level that no filter names, and one more than the longest filter has.
TOPICS = ["/".join(levels) for count in (1, 2, 3, 4) for levels in itertools.product("abc", repeat=count)]


def test_filters_overlap_where_some_topic_matches_both() -> None:
    matched = {each: {topic for topic in TOPICS if matches(each.encode(), topic.encode())} for each in FILTERS}
    wrong = [
        (one, other)
        for one, other in itertools.product(FILTERS, repeat=2)
        if overlap(one, other) != bool(matched[one] & matched[other])
    ]
    assert not wrong


@pytest.mark.parametrize(("one", "other"), [("#", "$SYS/a"), ("+/a", "$SYS/a"), ("$SYS/+", "#"), ("$x/#", "+/#")])
def test_a_wildcard_does_not_overlap_what_begins_with_a_dollar(one: str, other: str) -> None:
    assert not overlap(one, other)


def test_a_prefix_goes_and_another_comes() -> None:
    topic = BridgedTopic(filter="+/state", direction="both", local="site/7/", remote="plant/")
    out, back = topic.local_side(), topic.remote_side()
    assert (out.filter, back.filter) == ("site/7/+/state", "plant/+/state")
    assert out.mapped("site/7/pump/state") == "plant/pump/state"
    assert back.mapped("plant/pump/state") == "site/7/pump/state"


def test_the_level_itself_is_called_by_what_stands_before_its_slash() -> None:
    """ "a/#" matches "a" too."""
    topic = BridgedTopic(filter="#", direction="both", local="plant/", remote="site/7/")
    assert topic.local_side().mapped("plant") == "site/7"
    assert topic.local_side().mapped("plant/") == "site/7/"
    assert topic.remote_side().mapped("site/7") == "plant"


@pytest.mark.parametrize("topic", ["plant", "plant/", "plant/$SYS/uptime", "plant/$sdc/a"])
def test_what_would_be_called_by_nothing_or_belongs_to_that_broker_alone_has_no_name_there(topic: str) -> None:
    side = BridgedTopic(filter="#", local="plant/").local_side()
    topics = TopicMap([side])
    assert matches(side.filter.encode(), topic.encode())
    assert topics.mapped(topic.encode()) is None


def test_what_would_be_too_long_there_has_no_name() -> None:
    side = BridgedTopic(filter="#", remote="far/").local_side()
    assert side.mapped("x" * 65_531) is not None
    assert side.mapped("x" * 65_532) is None
    assert side.mapped("\N{SNOWMAN}" * 21_844) is None


def test_below_a_dollar_goes_what_says_so() -> None:
    assert BridgedTopic(filter="#", remote="$aws/").local_side().mapped("things/1") == "$aws/things/1"
    told = BridgedTopic(filter="$SYS/#", direction="in", local="far/").remote_side()
    assert told.mapped("$SYS/uptime") == "far/$SYS/uptime"


def test_of_several_topics_the_one_that_matches_maps_and_nothing_else_is_mapped() -> None:
    sides = [BridgedTopic(filter=name, remote=f"far/{name[0]}/").remote_side() for name in ("a/#", "b/#")]
    topics = TopicMap(sides, topics_max=2)
    for _ in range(2):  # remembered the second time
        assert topics.mapped(b"far/a/a/1") == "a/1"
        assert topics.mapped(b"far/b/b/2/3") == "b/2/3"
        assert topics.mapped(b"far/a/c") is None
