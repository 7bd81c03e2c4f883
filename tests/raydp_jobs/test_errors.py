"""What a job's failure says, out of Spark's and Ray's pages: one line with the reason. Needs no Spark."""

from __future__ import annotations

import pytest

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.raydp_jobs.spark.errors import JobFailedError, first_line, job_errors

IN_AN_EXECUTOR = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
ValueError: this batch is cursed

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""
BY_RAY = """\x1b[36mray::RayDPSparkMaster.start_up()\x1b[39m (pid=4263, ip=192.0.2.2)
  File "ray_cluster_master.py", line 73, in start_up
    self._create_app_master(extra_classpath)
py4j.protocol.Py4JJavaError: An error occurred while calling o0.startUpAppMaster.
: java.lang.IllegalArgumentException: Actor of name RAY_APP_MASTER exists
\tat io.ray.shaded.com.google.common.base.Preconditions.checkArgument(Preconditions.java:143)
"""


class FromSpark(Exception):
    """As Spark's own: known by its module."""


FromSpark.__module__ = "pyspark.errors"


class AnalysisException(FromSpark):
    """As Spark's for a query that is wrong."""


AnalysisException.__module__ = "pyspark.errors"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_AN_EXECUTOR, "ValueError: this batch is cursed"),
        (BY_RAY, "IllegalArgumentException: Actor of name RAY_APP_MASTER exists"),
        ("one\ntwo", "one"),
        ("", "FromSpark"),
    ],
)
def test_the_reason_is_found(text: str, line: str) -> None:
    assert first_line(FromSpark(text)) == line


def test_our_own_errors_become_one_line() -> None:
    assert first_line(UnavailableError("no\n  cluster")) == "no cluster"


def test_a_job_that_fails_says_that_nothing_was_changed() -> None:
    with pytest.raises(JobFailedError, match="nothing was changed: ValueError: this batch is cursed"), job_errors():
        raise FromSpark(IN_AN_EXECUTOR)


def test_a_wrong_query_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"^no such column$"), job_errors():
        raise AnalysisException("no such column; line 1 pos 7;")


def test_what_is_nobodys_failure_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), job_errors():
        print(1 // 0)
