"""The errors of Spark and Ray as a job tells them, in one line: their pages hold it somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError

_RAISED = re.compile(r"^(?:: )?(?:[\w.$]+\.)?(\w*(?:Error|Exception)\b.*)")
_TOLD_BY_RAY = re.compile(r"^(?:\x1b\[\d+m)?ray::")
_DETAILS = re.compile(r"\s*(?:SQLSTATE:.*|;\s*line \d+ pos \d+.*|== SQL ==.*)$", re.DOTALL)


class JobFailedError(UnavailableError):
    """A Spark job failed; the cluster is as it was."""


def first_line(error: BaseException) -> str:
    """The reason, in one line: what Python raised in an executor, else what Spark says first."""
    if isinstance(error, LexicastError):
        return " ".join(str(error).split())
    java: Any = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(getattr(error, "desc", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [found[1] for line in lines if (found := _RAISED.match(line))]
    if raised and ("Traceback" in text or _TOLD_BY_RAY.match(text)):
        return raised[-1]
    return lines[0] if lines else type(error).__name__


@contextmanager
def job_errors() -> Iterator[None]:
    """Spark's and Ray's errors as LexicastErrors: UsageError for a query that is wrong, else JobFailedError."""
    try:
        yield
    except LexicastError:
        raise
    except Exception as error:
        name = type(error).__name__
        if name in ("AnalysisException", "ParseException"):
            raise UsageError(_DETAILS.sub("", first_line(error))) from error
        if type(error).__module__.startswith(("py4j.", "pyspark.", "ray.")):
            raise JobFailedError(f"the job failed, nothing was changed: {first_line(error)}") from error
        raise
