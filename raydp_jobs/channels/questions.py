"""The questions of channels, asked of Spark: one query a channel for everybody who subscribes to it.

The parameters of all subscriptions are a table, which the channel's SQL is joined with (LATERAL): a thousand
subscriptions cost one query. Spark can take the SQL apart that way where parameters stand in WHERE or HAVING alone;
else each set of parameters is asked for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..history.dataframe import history, release
from ..spark.errors import first_line
from .definitions import Channel, PublicationTable, Value, inlined, same_types
from .runner import AskingEndedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MAX: Final = 100_000
"""Rows of one channel's answer in one period, over all subscriptions."""

_PARAMETERS: Final = "__parameters"
_TOPIC: Final = "__topic"
_COLUMNS: Final = ("topic", "time", "publisher", "payload")


class SparkQuestions:
    """What `ChannelRunner` asks."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.answered_at_once = True
        """Whether the last answer was one query for all subscriptions."""

    def ask(self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]) -> dict[str, list[dict[str, Any]]]:
        """Topic -> the rows of the answer now. Raises what Spark raises, AskingEndedError without a Spark."""
        try:
            frames = self._views(channel)
            try:
                return self._asked_at_once(channel, topics)
            finally:
                for frame in frames:
                    release(frame)
        except Exception as error:
            if self._is_gone():
                raise AskingEndedError(f"Spark is gone: {first_line(error)}") from error
            raise

    def _is_gone(self) -> bool:
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # nobody is there who could answer
            return True

    def _asked_at_once(
        self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, list[dict[str, Any]]]:
        from pyspark.errors import AnalysisException

        names = channel.parameters
        typed = same_types(list(topics.values()), names)
        rows = [(topic, *[given[name] for name in names]) for topic, given in zip(topics, typed, strict=True)]
        self._spark.createDataFrame(rows, [_TOPIC, *names]).createOrReplaceTempView(_PARAMETERS)
        sql = inlined(channel.sql, _PARAMETERS)
        joined = f"SELECT {_PARAMETERS}.{_TOPIC}, __answer.* FROM {_PARAMETERS}, LATERAL ({sql}) AS __answer"
        try:
            found = self._spark.sql(joined).limit(ROWS_MAX).collect()
            self.answered_at_once = True
        except AnalysisException:
            self.answered_at_once = False
            return self._asked_one_by_one(channel, topics)
        answers: dict[str, list[dict[str, Any]]] = {}
        for row in found:
            values = row.asDict(recursive=True)
            answers.setdefault(values.pop(_TOPIC), []).append(values)
        return answers

    def _asked_one_by_one(
        self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, list[dict[str, Any]]]:
        answers = {}
        for topic, given in topics.items():
            rows = self._spark.sql(channel.sql, args=dict(given)).limit(ROWS_MAX).collect()
            answers[topic] = [row.asDict(recursive=True) for row in rows]
        return answers

    def _views(self, channel: Channel) -> list[DataFrame]:
        """Make the channel's tables; the frames to be released after the answer."""
        frames = []
        for name, source in channel.history.items():
            frames.append(self._source(source))
            frames[-1].createOrReplaceTempView(name)
        for name, source in channel.state.items():
            frames.append(self._source(source))
            latest(frames[-1]).createOrReplaceTempView(name)
        for name, text in channel.tables.items():
            static_table(self._spark, text).createOrReplaceTempView(name)
        return frames

    def _source(self, source: PublicationTable) -> DataFrame:
        return history(
            self._spark,
            source.filter,
            since=timedelta(seconds=source.window_s),
            columns=[*_COLUMNS, "offset"],
            schema=source.columns or None,
            where=source.where,
        )


def latest(rows: DataFrame) -> DataFrame:
    """Of each topic its last publication (a topic's offsets ascend, and it lies in one group)."""
    from pyspark.sql import functions as f

    whole = f.struct(*[f.col(name) for name in rows.columns])
    return rows.groupBy("topic").agg(f.max_by(whole, "offset").alias("last")).select("last.*")


def static_table(spark: SparkSession, text: str) -> DataFrame:
    """A table from CSV with a header; types are inferred."""
    from pyspark.sql import DataFrame

    strings = spark.createDataFrame([(line,) for line in text.splitlines() if line.strip()], "value STRING")
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()
    reader = spark._jsparkSession.read().option("header", "true").option("inferSchema", "true")
    return DataFrame(reader.csv(getattr(strings._jdf, "as")(encoder)), spark)
