"""Fields of JSON payloads: which messages are odd, how columns are named, and what Spark makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lexicast.actors.launch.spark_environment import prepare_spark
from lexicast.cluster.errors import UsageError
from lexicast.raydp_jobs.history.json_fields import (
    DEPTH_MAX,
    FIELDS_MAX,
    collides,
    distinct,
    fields_of,
    has_twice,
    is_deep,
    is_odd,
    titled,
    with_payload_columns,
)

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType


def nested(depth: int) -> str:
    return "[" * (depth // 2) + '{"a":' * (depth - depth // 2) + "1" + "}" * (depth - depth // 2) + "]" * (depth // 2)


def test_depth_is_of_brackets_outside_texts() -> None:
    assert not is_deep(nested(DEPTH_MAX))
    assert is_deep(nested(DEPTH_MAX + 1))
    assert is_deep("[" * 100_000)
    assert not is_deep(json.dumps({"text": "[" * 100, "more": '\\"{' * 100}))
    assert not is_deep(json.dumps([[]] * 1_000))


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"a": 1, "b": 2}', False),
        ('{"a": 1, "a": 2}', True),
        ('{"a": 1, "A": 2}', True),
        ('{"Ä": 1, "ä": 2}', True),
        ('[{"b": {"x": 1, "X": 2}}]', True),
        ('{"a": {"a": 1}}', False),
        ('[{"a": 1}, {"A": 1}]', False),
        ('{"a": 1, "a"', False),
        ("no json", False),
        ("", False),
    ],
)
def test_names_that_come_twice_in_one_object(text: str, twice: bool) -> None:
    assert has_twice(text) is twice
    assert is_odd(text) is twice


def test_titles_differ_by_more_than_case() -> None:
    assert titled(["delay", "Delay", "DELAY", "time"], ["topic", "Time"]) == [
        "delay",
        "payload_Delay",
        "payload_payload_DELAY",
        "payload_time",
    ]
    assert titled(["a", "payload_A", "A"], []) == ["a", "payload_A", "payload_payload_A"]


def test_schemas_are_made_distinct_at_every_depth() -> None:
    inner = StructType([StructField("x", LongType()), StructField("X", StringType())])
    schema = StructType([StructField("a", ArrayType(inner)), StructField("b", LongType())])
    assert collides(schema)
    assert fields_of(schema) == 4
    made = distinct(schema)
    assert not collides(made)
    assert made["a"].dataType.elementType.names == ["x", "payload_X"]
    assert [field.dataType for field in made["a"].dataType.elementType.fields] == [LongType(), StringType()]
    assert not collides(StructType([StructField("a", inner), StructField("b", inner)])["b"].dataType["x"].dataType)


# -- in Spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Spark without a cluster: what it does with JSON is the same."""
    from pyspark.sql import SparkSession

    prepare_spark()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def rows(spark: Any, *payloads: str | None) -> list[dict[str, Any]]:
    frame = spark.createDataFrame([(at, text) for at, text in enumerate(payloads)], "offset INT, payload STRING")
    parsed = with_payload_columns(frame.selectExpr("offset", "cast(payload as binary) payload"), "json")
    return [row.asDict(recursive=True) for row in parsed.drop("payload").orderBy("offset").collect()]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
class TestInSpark:
    def test_one_bad_message_costs_itself(self, spark: Any, caplog: pytest.LogCaptureFixture) -> None:
        deep = '{"delay":' * 400 + "1" + "}" * 400
        twice = ('{"delay": 1, "Delay": 2}', '{"delay": 1, "delay": "x"}', '{"in": [{"a": 1, "A": 2}]}')
        found = rows(spark, '{"delay": 5}', deep, *twice, "no json", None, '{"delay": 6, "in": [{"a": 7}]}')
        assert [row["delay"] for row in found] == [5, None, None, None, None, None, None, 6]
        assert found[-1]["in"] == [{"a": 7}]
        assert "4 payloads have nulls" in caplog.text

    def test_messages_that_spell_a_name_differently_have_a_column_each(self, spark: Any) -> None:
        found = rows(spark, '{"delay": 5, "in": {"x": 1}}', '{"Delay": "late", "in": {"X": 2}}')
        assert [(row["Delay"], row["payload_delay"]) for row in found] == [(None, 5), ("late", None)]
        same = rows(spark, '{"delay": 5}', '{"Delay": 6}')
        assert [(row["Delay"], row["payload_delay"]) for row in same] == [(None, 5), (6, None)]
        assert [row["in"] for row in found] == [{"X": None, "payload_x": 1}, {"X": 2, "payload_x": None}]

    def test_names_that_are_data_are_refused(self, spark: Any) -> None:
        with pytest.raises(UsageError, match="name those wanted"):
            rows(spark, json.dumps({f"device{at}": at for at in range(FIELDS_MAX + 1)}))
