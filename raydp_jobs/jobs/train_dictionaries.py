"""`lexicast spark train-dictionaries`: every family's dictionary from its history, in parallel, published if it pays.

families      every topic of the history, as the sampling broker assigns them (`compression.families`), and the
              families that have a dictionary already
per family    its newest messages, in the order in which they were stored, to `dictionary_choice.choose`
publishing    like any other dictionary: retained, on the family's `$sdc/` topic
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

import lexicast
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.points_in_time import Since, Until
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.dictionary import Dictionary, unpack_dictionary

from ..history.dataframe import history, release
from ..history.reading import Progress
from ..spark.environment import spark_session
from ..spark.errors import job_errors
from ..spark.progress import JobProgress
from .dictionary_choice import MESSAGES_MAX, Choice, HistoryCandidate, choose
from .families import GIVE_UP_S, current_dictionaries, families_of, topics_of
from .pictures import draw_dictionaries

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


_RESULT: Final = (
    "family BINARY, messages BIGINT, raw DOUBLE, current DOUBLE, proposed DOUBLE, codec STRING, size INT, "
    "source STRING, window INT, packed_bytes INT, horizon BIGINT, reason STRING, packed BINARY"
)


def train_dictionaries(
    console: Console,
    connect: Mapping[str, Any],
    config: CompressionConfig,
    filter: str,
    since: str,
    until: str | None,
    subscribers: int,
    executors: int,
    picture: Path | None,
    dry_run: bool,
) -> None:
    """Train, show, publish. Raises LexicastError."""
    with JobProgress(console) as progress, job_errors(), ExitStack() as stack:
        progress.say("starting Spark")
        spark = stack.enter_context(spark_session(**connect, executors=executors))
        choices = choose_dictionaries(
            spark,
            connect,
            config,
            filter,
            since=since,
            until=until,
            subscribers=subscribers,
            progress=progress.read,
            computing=lambda: stack.enter_context(progress.computing(spark, "training dictionaries")),
        )
        better = [choice.dictionary for choice in choices if choice.dictionary is not None]
        if better and not dry_run:
            asyncio.run(publish_dictionaries(connect, better))
    console.print(choices_table(choices))
    done = "would be published" if dry_run else "published"
    console.print(f"{len(better)} of {len(choices)} families: a better dictionary {done}")
    if picture is not None:
        draw_dictionaries(choices, picture)
        console.print(f"picture: {picture}", soft_wrap=True)


async def publish_dictionaries(connect: Mapping[str, Any], dictionaries: Iterable[Dictionary]) -> int:
    """Publish dictionaries; returns how many."""
    count = 0
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        for dictionary in dictionaries:
            await bus.publish(dictionary_topic(dictionary.family).decode(), dictionary.pack(), qos=1, retain=True)
            count += 1
    return count


def choose_dictionaries(
    spark: SparkSession,
    connect: Mapping[str, Any],
    config: CompressionConfig,
    filter: str = "#",
    *,
    since: Since = "beginning",
    until: Until = None,
    subscribers: int = 1,
    progress: Progress | None = None,
    computing: Callable[[], None] = lambda: None,
) -> list[Choice]:
    """The best dictionary of every family in the history; publishes nothing.

    `connect`: arguments for `lexicast.connect`; `subscribers`: S of the accounting. `computing` is called when the
    history has been read. Raises as `history`, and UnavailableError (more than TOPICS_MAX topics: use a filter).
    """
    held = asyncio.run(current_dictionaries(connect))
    columns = ["topic", "group", "offset", "time", "publisher", "payload"]
    frame = history(spark, filter, since=since, until=until, columns=columns, progress=progress)
    frame = frame.where("payload IS NOT NULL")
    computing()
    try:
        families = families_of(topics_of(frame), config, held.values())
        if not families:
            return []
        rows = _per_family(spark, frame, families, held, subscribers, config.dictionary_bytes_max).collect()
    finally:
        release(frame)
    return sorted((_choice(row) for row in rows), key=lambda choice: -choice.messages * choice.raw)


def _per_family(
    spark: SparkSession,
    frame: DataFrame,
    families: Mapping[str, bytes],
    held: Mapping[bytes, Dictionary],
    subscribers: int,
    size_max: int,
) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    pairs = spark.createDataFrame(list(families.items()), "topic STRING, family BINARY")
    joined = frame.join(f.broadcast(pairs), "topic")
    counts = joined.groupBy("family").agg(
        f.count("*").alias("seen"), f.approx_count_distinct("publisher").alias("publishers")
    )
    newest = Window.partitionBy("family").orderBy(f.desc("time"), f.desc("group"), f.desc("offset"))
    kept = joined.withColumn("rank", f.row_number().over(newest)).where(f.col("rank") <= MESSAGES_MAX)
    kept = kept.select("family", "rank", "payload").join(f.broadcast(counts), "family")
    packed = {family: dictionary.pack() for family, dictionary in held.items()}
    now_us = time.time_ns() // 1_000

    def work(rows: pd.DataFrame) -> pd.DataFrame:
        return _work(rows, packed, subscribers, size_max, now_us)

    return kept.groupBy("family").applyInPandas(work, _RESULT)


def _work(
    rows: pd.DataFrame, packed: Mapping[bytes, bytes], subscribers: int, size_max: int, now_us: int
) -> pd.DataFrame:
    """One family, in a Spark executor's Python."""
    import pandas as pd

    rows = rows.sort_values("rank", ascending=False)
    family = bytes(rows["family"].iloc[0])
    held = packed.get(family)
    choice = choose(
        family,
        [bytes(payload) for payload in rows["payload"]],
        int(rows["seen"].iloc[0]),
        None if held is None else unpack_dictionary(held),
        publishers=max(1, int(rows["publishers"].iloc[0])),
        subscribers=subscribers,
        now_us=now_us,
        size_max=size_max,
    )
    codec, size, source, window = choice.candidate or (None, 0, None, 0)
    made = None if choice.dictionary is None else choice.dictionary.pack()
    values = [*choice[:5], codec, size, source, window, *choice[6:9], made]
    return pd.DataFrame([values], columns=[field.split()[0] for field in _RESULT.split(", ")])


def _choice(row: Any) -> Choice:
    candidate = None if row.codec is None else HistoryCandidate(row.codec, row.size, row.source, row.window)
    made = None if row.packed is None else unpack_dictionary(bytes(row.packed))
    means = (row.raw, row.current, row.proposed)
    return Choice(bytes(row.family), row.messages, *means, candidate, row.packed_bytes, row.horizon, row.reason, made)


def choices_table(choices: Sequence[Choice]) -> Table:
    """Families, current and proposed reduction, and why."""
    made = Table(title="dictionaries from the history, measured on later messages", title_justify="left")
    made.add_column("family", overflow="fold")
    for name in ("messages", "mean bytes", "now", "proposed", "dictionary", "as sent"):
        made.add_column(name, justify="right")
    made.add_column("why")
    for choice in choices:
        found = choice.candidate
        made.add_row(
            choice.family.decode(errors="replace"),
            f"{choice.messages:,}",
            f"{choice.raw:,.0f}" if found else "-",
            f"{choice.current_percent:.1f}%" if found else "-",
            f"{choice.proposed_percent:.1f}%" if found else "-",
            f"{found.codec} {found.source}, {found.size:,} B" if found else "-",
            f"{choice.packed_bytes:,} B" if found else "-",
            choice.reason,
        )
    return made
