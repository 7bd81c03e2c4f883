"""The check of SQL by Spark's own parser before Spark is started: a mistake is told in seconds, not in half a minute.

A Java process with nothing but the parser in it. What can only be known with the data (columns, types) is Spark's to
say. Where the parser cannot be started nothing is said here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import UnavailableError, UsageError

# It lives for seconds: no optimising compiler, one thread for garbage.
_QUICK: Final = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"]
_RELATION: Final = re.compile(r"'UnresolvedRelation \[([^\]]+)\]")
_CTE: Final = re.compile(r"\bCTE \[([^\]]+)\]")


def check_sql(sql: str, tables: Collection[str]) -> None:
    """Raises UsageError: a syntax error, or a table that is none of `tables` (whatever the case)."""
    with suppress(UnavailableError), _parser() as parse:
        unknown = unknown_tables(parse(sql), tables)
        if unknown:
            there = ", ".join(sorted(tables)) or "none"
            raise UsageError(f"the SQL names {', '.join(unknown)}: the tables are {there}")


def unknown_tables(plan: str, tables: Collection[str]) -> list[str]:
    """The tables that a parsed plan, as Spark prints it, reads and that are neither in `tables` nor its own WITH's."""
    known = {name.lower() for name in tables}
    for found in _CTE.findall(plan):
        known |= {name.strip().lower() for name in found.split(",")}
    # a name with a dot is a file's (parquet.`/a/b`), or for Spark to find out
    named = [name for name in _RELATION.findall(plan) if "," not in name]
    return sorted({name for name in named if name.lower() not in known})


@contextmanager
def _parser() -> Iterator[Any]:
    """What turns SQL into a plan as text. Raises UnavailableError: no Spark, no Java."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UnavailableError("pyspark is not installed")
    py4j: Any = import_module("py4j.java_gateway")
    protocol: Any = import_module("py4j.protocol")
    jars = os.pathsep.join(map(str, (Path(spec.origin).parent / "jars").glob("*.jar")))
    try:
        gateway = py4j.JavaGateway.launch_gateway(
            classpath=jars,
            javaopts=_QUICK,
            die_on_exit=True,
            redirect_stdout=subprocess.DEVNULL,
            redirect_stderr=subprocess.DEVNULL,
        )
    except Exception as error:  # py4j has no one error for a Java that is missing, broken or none
        raise UnavailableError(f"no Java to parse SQL with: {error}") from None
    try:
        parser = gateway.jvm.org.apache.spark.sql.execution.SparkSqlParser()

        def parse(sql: str) -> str:
            try:
                return str(parser.parsePlan(sql).treeString())
            except protocol.Py4JJavaError as error:
                text = str(error.java_exception.getMessage()).partition("== SQL ==")[0]
                raise UsageError(" ".join(text.split())) from None

        yield parse
    finally:
        with suppress(Exception):  # it ends with our end of its standard input in any case
            gateway.shutdown()
        gateway.java_process.stdin.close()
        gateway.java_process.wait()
