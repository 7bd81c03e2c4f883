"""Questions of the page: a line of JSON comes, a line of JSON goes, by a Spark that starts with the first of them.

    python -m lexicast.raydp_jobs.jobs.page_questions RAY_ADDRESS

A question: {"statement", "filter", "since", "until", "where", "schema", "limit", "reader"}; `reader`: whose it is,
None: somebody whom no rules concern. What is read is what that user may read of the past, by the rules that come with
it. An answer: {"columns", "rows", "more"}, or {"error", "usage": whether the question is wrong}. It ends with its
input.

What is bounded: bytes as stored that are read, rows and bytes that are answered. Time is whoever's who started it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TextIO

from lexicast.cluster.errors import LexicastError, UsageError

from ..history.dataframe import as_dataframe, release
from ..history.reading import Reader, check_question, planned, read
from ..spark.environment import spark_session
from ..spark.errors import job_errors
from ..spark.sql_check import check_sql
from ..spark.statements import check_statement, restrict
from .sql import TABLE, cell_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_BYTES_MAX: Final = 256 << 20
ROWS_MAX: Final = 1_000
ANSWER_BYTES_MAX: Final = 512 * 1024
CELL_CHARACTERS_MAX: Final = 16 * 1024
# What Spark collects for an answer, before it is cut.
SETTINGS: Final = {"spark.driver.maxResultSize": "32m"}
# Beyond it JavaScript has no whole numbers.
SAFE_INTEGER: Final = 2**53 - 1


def answer_lines(address: str, questions: TextIO, answers: TextIO) -> None:
    """Until `questions` ends."""
    spark: SparkSession | None = None
    with ExitStack() as ends:
        for line in questions:
            try:
                with job_errors():
                    question = json.loads(line)
                    if spark is None:
                        # A mistake is told at once, not when Spark has started.
                        _check(question)
                        check_sql(question["statement"], [TABLE])
                        spark = ends.enter_context(spark_session(address, configs=SETTINGS))
                        restrict(spark)
                    told = answered(spark, question)
            except LexicastError as error:
                told = {"error": " ".join(str(error).split()), "usage": isinstance(error, UsageError)}
            print(json.dumps(told), file=answers, flush=True)


def answered(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question. Raises LexicastError, and what Spark raises."""
    _check(question)
    check_statement(spark, question["statement"], [TABLE])
    where = (question["filter"], question["since"], question["until"])
    _, stored_bytes = planned(*where)
    if stored_bytes > READ_BYTES_MAX:
        raise UsageError(
            f"{stored_bytes:,} bytes would be looked through, more than {READ_BYTES_MAX:,}: name a shorter time, or "
            "ask at the shell (lexicast spark sql)"
        )
    reader = None if question["reader"] is None else Reader(*question["reader"])
    frame = as_dataframe(spark, read(*where, where=question["where"], reader=reader), question["schema"])
    try:
        frame.createOrReplaceTempView(TABLE)
        asked, limit = spark.sql(question["statement"]), min(question["limit"], ROWS_MAX)
        rows = [[page_value(value) for value in row] for row in asked.limit(limit + 1).collect()]
        taken = bounded(rows[:limit])
        return {"columns": asked.columns, "rows": taken, "more": len(rows) > len(taken)}
    finally:
        spark.catalog.dropTempView(TABLE)
        release(frame)


def _check(question: dict[str, Any]) -> None:
    check_question(question["filter"], question["since"], question["until"], where=question["where"])


def page_value(value: Any) -> Any:
    """A value as JSON has it; what JavaScript would round, or is too long, as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "asDict"):
        value = value.asDict(recursive=True)
    text = json.dumps(value, default=cell_text) if isinstance(value, dict | list | tuple) else cell_text(value)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[:CELL_CHARACTERS_MAX] + " ..."


def bounded(rows: Sequence[list[Any]]) -> list[list[Any]]:
    """The first of them, as many as an answer has room for."""
    left, taken = ANSWER_BYTES_MAX, list[list[Any]]()
    for row in rows:
        left -= len(json.dumps(row))
        if left < 0:
            break
        taken.append(row)
    return taken


def main() -> None:
    """The entry point."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # By a descriptor of its own: what Spark's processes write to stdout is no answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        answer_lines(sys.argv[1], sys.stdin, answers)


if __name__ == "__main__":
    main()
