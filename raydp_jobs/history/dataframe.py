"""The history as a Spark DataFrame, a Ray Dataset, or parquet files.

    df = lexicast.history(spark, "flights/+", since="1h", schema="json")
    df.groupBy("carrier").count().show()

What is read is the past as of the call: each group up to its committed position (see `reading`); publishing goes on
meanwhile and does not show. The rows lie in Ray's object store, not in this process.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import ray

from lexicast.actors.ray.errors import ray_errors
from lexicast.cluster.errors import StoreError, UsageError
from lexicast.cluster.files import create_file, make_folder
from lexicast.cluster.points_in_time import Since, Until

from .columns import COLUMNS, schema_of
from .json_fields import with_payload_columns
from .reading import Blocks, Progress, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("lexicast.history")

# Ray forgets an object that no reference names, and Spark's plans hold none: `release` or the end of the process.
_held: dict[str, list[Any]] = {}


def history(
    spark: SparkSession,
    filter: str = "#",
    *,
    since: Since = "beginning",
    until: Until = None,
    columns: Sequence[str] | None = None,
    schema: str | StructType | None = None,
    where: str | None = None,
    expired: bool = False,
    progress: Progress | None = None,
) -> DataFrame:
    """What was published to topics that match `filter`, as long as retention has kept it, as a Spark DataFrame.

    `since`, `until`: as in `Client.history`: from there on, to before then. `columns`: only these (see
    `lexicast.raydp_jobs.history.columns`; all by default); without `payload` and `raw_bytes` nothing is decompressed.
    `schema`: payloads are JSON objects, and their fields become columns behind the others: "json" looks at all of them
    for names and types, else a StructType or text such as "carrier STRING, delay INT"; a field that is called as a
    column is already, but for upper and lower case, gets the prefix `payload_`. A payload that is no such object has
    nulls (see `lexicast.raydp_jobs.history.json_fields` for those that "json" leaves out). One that cannot be
    decompressed is null itself; a warning in the log (`lexicast.history`) says how many are. `where`: a condition on
    their content (docs/content.md), asked where they are read: only those of which it is true. `expired`: also those
    whose expiry has passed. `progress` is called with slices read, slices in all, and rows.

    The rows stay in Ray's object store until `release(df)` (of `lexicast.raydp_jobs.history.dataframe`) or the process
    ends. Each row is one publication, named by (group, epoch, offset); rows are in order within a group, groups in no
    order.

    Raises UsageError, TopicError, UnavailableError (no cluster, a node is gone), StoreError (a store cannot
    be read).
    """
    if schema is not None and columns is not None and "payload" not in columns:
        raise UsageError("schema= reads the payload: put 'payload' among the columns")
    return as_dataframe(
        spark, read(filter, since, until, columns, where=where, expired=expired, progress=progress), schema
    )


def as_dataframe(spark: SparkSession, blocks: Blocks, schema: str | StructType | None = None) -> DataFrame:
    """What has been read, as `history` gives it."""
    df = _to_spark(spark, _told(blocks))
    return df if schema is None else with_payload_columns(df, schema)


def _told(blocks: Blocks) -> Blocks:
    if blocks.undecodable:
        log.warning("%d payloads cannot be decompressed and are null", blocks.undecodable)
    return blocks


def _to_spark(spark: SparkSession, blocks: Blocks) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema
    from raydp.spark.dataset import ray_dataset_to_spark_dataframe

    if not blocks.refs:
        return spark.createDataFrame([], from_arrow_schema(blocks.schema))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # RayDP reads ray.worker, which Ray means to take away
        df: DataFrame = ray_dataset_to_spark_dataframe(spark, blocks.schema, blocks.refs)
    _held[_plan_id(df)] = blocks.refs
    return df


def warm(spark: SparkSession) -> None:
    """Have this process and Spark's load what `history` needs, on one made-up row: 10 s on two cores, once."""
    sink = pa.BufferOutputStream()
    empty = pa.RecordBatch.from_pylist([dict.fromkeys(COLUMNS)], schema=schema_of(COLUMNS))
    with pa.ipc.new_stream(sink, empty.schema) as writer:
        writer.write_batch(empty)
    frame = _to_spark(spark, Blocks([ray.put(sink.getvalue().to_pybytes())], [1], empty.schema))
    frame.count()
    release(frame)


def _plan_id(df: DataFrame) -> str:
    """Names the rows that `df` is made of: the same for everything derived from it."""
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    return str(leaves.apply(0).output().mkString(","))


def release(df: DataFrame) -> None:
    """Let Ray forget the rows of a DataFrame from `history` (or one derived from it); it cannot be used after that."""
    _held.pop(_plan_id(df), None)


def release_all() -> None:
    """The same for all of them."""
    _held.clear()


def history_dataset(
    filter: str = "#",
    *,
    since: Since = "beginning",
    until: Until = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    expired: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The same as a Ray Dataset, without Spark or Java; arguments and errors as `history`."""
    blocks = _told(read(filter, since, until, columns, where=where, expired=expired, progress=progress))
    if not blocks.refs:
        return ray.data.from_arrow(blocks.schema.empty_table())
    remote: Any = ray.remote(num_cpus=0)(as_table)
    return ray.data.from_arrow_refs([remote.remote(ref) for ref in blocks.refs])


def as_table(stream: bytes) -> pa.Table:
    """An Arrow stream as a table."""
    return pa.ipc.open_stream(stream).read_all()


def export_parquet(
    folder: Path,
    filter: str = "#",
    *,
    since: Since = "beginning",
    until: Until = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    expired: bool = False,
    progress: Progress | None = None,
) -> int:
    """The same as parquet files (zstd), one a slice, in the new or empty `folder` on this machine; returns the rows.

    Without Spark or Java. Raises also UsageError (the folder holds something) and StoreError (it cannot be written).
    """
    try:
        make_folder(folder)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} holds files already: give a new or an empty folder")
        blocks = _told(read(filter, since, until, columns, where=where, expired=expired, progress=progress))
        for at, ref in enumerate(blocks.refs):
            # One at a time: this process holds one slice, whatever the history's size.
            with create_file(folder / f"part-{at:05d}.parquet") as file:
                with ray_errors("a slice of the history"):
                    stream = ray.get(ref)
                pyarrow.parquet.write_table(as_table(stream), file, compression="zstd")
        if not blocks.refs:
            with create_file(folder / "part-00000.parquet") as file:
                pyarrow.parquet.write_table(blocks.schema.empty_table(), file)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}") from None
    return sum(blocks.rows)


__all__ = ["COLUMNS", "export_parquet", "history", "history_dataset", "release"]
