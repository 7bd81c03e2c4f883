"""Channels and the choice of dictionaries, as far as they need no Spark: definitions, topics, SQL, trials."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import TopicError, UsageError
from lexicast.cluster.topics.names import check_filter, check_topic, is_wildcard
from lexicast.raydp_jobs.channels.definitions import (
    Channel,
    PublicationTable,
    channel_topic,
    inlined,
    parse_table,
    parse_topic,
    same_types,
    unpack_channel,
)
from lexicast.raydp_jobs.channels.example import emergencies_near_me
from lexicast.raydp_jobs.jobs.dictionary_choice import MESSAGES_MIN, choose, horizon_of

VALUES = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_topics_come_back_and_are_no_wildcards(parameters: dict[str, str | int | float]) -> None:
    try:
        topic = channel_topic("Near", parameters)
    except UnicodeEncodeError:
        return
    check_topic(topic.encode())
    check_filter(topic.encode())
    assert not is_wildcard(topic.encode())
    parsed = parse_topic(topic)
    assert parsed is not None
    assert {name: str(value) for name, value in parsed[1].items()} == {k: str(v) for k, v in parameters.items()}
    assert channel_topic(*parsed) == topic


def test_the_order_of_parameters_makes_no_difference() -> None:
    assert channel_topic("Near", {"user": "ann", "km": 5}) == channel_topic("Near", {"km": 5, "user": "ann"})


@pytest.mark.parametrize(
    "topic", ["x/y", "$channel/Near", "$channel/Near/b=1,a=2", "$channel/Near/a", "$channel/Near/a=/b"]
)
def test_other_topics_are_no_subscriptions_of_a_channel(topic: str) -> None:
    assert parse_topic(topic) is None


def test_parameters_are_found_where_they_are_parameters() -> None:
    sql = "SELECT ':no', \":no\", `:no`, a::int -- :no\n /* :no */ FROM t WHERE x = :user AND y < :km AND z = :user"
    channel = Channel("c", sql, 1.0)
    assert channel.parameters == ("km", "user")
    made = inlined(sql, "p")
    assert made.count("p.`user`") == 2
    assert made.count("p.`km`") == 1
    assert made.count(":no") == 5


def test_a_definition_comes_back() -> None:
    channel = emergencies_near_me()
    assert unpack_channel(channel.pack()) == channel
    assert channel.parameters == ("km", "user")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period_s": 0.1}, "at least 1 is needed"),
        ({"sql": " "}, "the SQL is empty"),
        ({"name": "a/b"}, "is no name for a channel"),
        ({"tables": {"history-1": ""}}, "is no name for a channel or a table"),
        ({"history": {"t": PublicationTable("x/#", 1, "")}, "tables": {"t": "a\n1"}}, "two tables have one name"),
        ({"state": {"t": PublicationTable("x/#", 0, "")}}, "a window of 0 s"),
    ],
)
def test_a_definition_that_cannot_be_used_says_why(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"name": "c", "sql": "SELECT 1", "period_s": 5.0, **changes}
    with pytest.raises(UsageError, match=message):
        Channel(**fields)  # type: ignore[arg-type] # the test's point is what the values are


def test_a_wrong_filter_is_refused() -> None:
    with pytest.raises(TopicError):
        Channel("c", "SELECT 1", 5.0, history={"t": PublicationTable("a/#/b", 5, "")})


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"name": "c"}', b"null"])
def test_garbage_is_no_definition(payload: bytes) -> None:
    with pytest.raises(UsageError, match="not a channel's definition"):
        unpack_channel(payload)


def test_large_tables_are_refused() -> None:
    with pytest.raises(UsageError, match="publish large tables as retained messages"):
        Channel("c", "SELECT 1", 5.0, tables={"t": "x" * 600_000}).pack()


def test_sources_are_read_from_the_command_line() -> None:
    assert parse_table("e=emergencies/+@1m30s", {"e": "id STRING"}) == (
        "e",
        PublicationTable("emergencies/+", 90.0, "id STRING"),
    )
    assert parse_table("e=f/#@1m", {}, {"e": "delay > 3"})[1].where == "delay > 3"
    with pytest.raises(UsageError, match="NAME=FILTER@WINDOW"):
        parse_table("emergencies/+", {})


def test_a_table_may_have_a_condition_and_one_of_before_has_none() -> None:
    late = PublicationTable("f/#", 60.0, "", "delay > 3")
    channel = Channel("c", "SELECT 1", 5.0, history={"late": late})
    assert unpack_channel(channel.pack()).history == {"late": late}
    without = json.loads(channel.pack())
    del without["history"]["late"]["where"]
    assert unpack_channel(json.dumps(without).encode()).history == {"late": PublicationTable("f/#", 60.0, "")}
    with pytest.raises(UsageError, match="column"):
        Channel("c", "SELECT 1", 5.0, history={"late": PublicationTable("f/#", 60.0, "", "delay >")})


def test_parameters_of_all_subscriptions_have_one_type() -> None:
    assert same_types([{"a": 1, "b": 1}, {"a": 2.5, "b": "x"}], ["a", "b"]) == [
        {"a": 1.0, "b": "1"},
        {"a": 2.5, "b": "x"},
    ]
    assert same_types([{"a": 1}, {"a": 2}], ["a"]) == [{"a": 1}, {"a": 2}]


# Choosing dictionaries


def telemetry(count: int) -> list[bytes]:
    return [
        json.dumps(
            {"device": f"d{at % 7}", "temperature": 20 + at % 11, "unit": "celsius", "at": 1_700_000_000 + at}
        ).encode()
        for at in range(count)
    ]


def test_a_dictionary_that_pays_is_proposed_and_decodes() -> None:
    messages = telemetry(400)
    choice = choose(b"d/+", messages, 400, None)
    assert choice.dictionary is not None
    assert choice.proposed < choice.current < choice.raw
    codec = choice.dictionary.build()
    assert all(codec.decompress(codec.compress(message)) == message for message in messages[:20])


def test_what_is_used_now_stays_where_nothing_is_better() -> None:
    messages = telemetry(400)
    current = choose(b"d/+", messages, 400, None).dictionary
    again = choose(b"d/+", messages, 400, current)
    assert again.dictionary is None
    assert "not worth" in again.reason


def test_a_dictionary_that_has_to_cross_too_many_links_does_not_pay() -> None:
    messages = telemetry(60)
    assert choose(b"d/+", messages, 60, None).dictionary is not None
    assert choose(b"d/+", messages, 60, None, publishers=2_000).dictionary is None


def test_few_messages_say_nothing() -> None:
    choice = choose(b"d/+", telemetry(MESSAGES_MIN - 1), 10**6, None)
    assert choice.dictionary is None
    assert choice.reason == "only 49 messages"


def test_the_horizon_is_a_links_share() -> None:
    assert horizon_of(1_000, publishers=1, subscribers=1) == 1_000
    assert horizon_of(1_000, publishers=100, subscribers=1) == 19
    assert horizon_of(1_000, publishers=1, subscribers=100) == 1_000
