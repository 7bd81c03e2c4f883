"""Fields of JSON payloads as columns behind a history's own.

    with_payload_columns(df, "json")

Whose fields are found by looking at all payloads ("json"), one odd message must not cost the others theirs. Nulls, and
counted, are payloads

    nested more than DEPTH_MAX deep               Spark's plan grows with the schema: 400 levels never end
    with a name twice in one object               also where only upper and lower case differ: Spark's columns are one
                                                  whatever the case, and which value is meant nobody knows

Where different messages spell a name differently ("Delay", "delay") each is a column, and all but the first carry the
prefix. More than FIELDS_MAX fields are refused: names that are data (a key a device) belong into a MAP, by a schema.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from lexicast.cluster.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("lexicast.history")

PREFIX: Final = "payload_"
DEPTH_MAX: Final = 32
FIELDS_MAX: Final = 2_000

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(r"[][{}]")
_PAYLOAD: Final = "__payload"
_CASE: Final = "spark.sql.caseSensitive"


def with_payload_columns(df: DataFrame, schema: str | StructType) -> DataFrame:
    """`df` and, behind its columns, the fields of its JSON payloads; see `history`. Raises UsageError."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    text = f.col("payload").cast("string")
    if schema == "json":
        schema, text = infer_schema(df)
    elif isinstance(schema, str):
        schema = parse_schema(schema)
    if not isinstance(schema, StructType) or not schema.names:
        return df
    named = distinct(schema)
    parsed = df.withColumn(_PAYLOAD, f.from_json(text, schema).cast(named))
    titles = titled(named.names, df.columns)
    fields = [f.col(_PAYLOAD).getField(name).alias(title) for name, title in zip(named.names, titles, strict=True)]
    return parsed.select(*df.columns, *fields)


def parse_schema(text: str) -> StructType:
    """A schema as text, such as "carrier STRING, delay INT". Raises UsageError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType, _parse_datatype_string

    try:
        parsed = _parse_datatype_string(text)
    except PySparkException as error:
        raise UsageError(f"schema {text!r}: write 'json', or as in 'carrier STRING, delay INT'") from error
    if not isinstance(parsed, StructType):
        raise UsageError(f"schema {text!r}: name the fields, as in 'carrier STRING, delay INT'")
    return parsed


def infer_schema(df: DataFrame) -> tuple[StructType, Column]:
    """Names and types of the fields of JSON payloads, of all of them, and the texts that they are in.

    The work is Spark's, in its executors; only where brackets are many or names come twice does Python look at
    payloads. Raises UsageError (too many fields).
    """
    from pyspark.sql import functions as f

    text = f.col("payload").cast("string")
    brackets = f.length(text) - f.length(f.translate(text, "{[", ""))
    most = df.agg(f.max(brackets).alias("most")).collect()[0].most or 0
    odd: Column | None = None
    if most > DEPTH_MAX:
        odd = _asked(is_deep, f.when(brackets > DEPTH_MAX, text))
    schema = _inferred(df, text, odd)
    if collides(schema):
        odd = _asked(is_odd, text)
        schema = _inferred(df, text, odd)
    if odd is not None and (count := df.where(odd).count()):
        log.warning("%d payloads have nulls: a name twice in one object, or more than %d levels", count, DEPTH_MAX)
    if (found := fields_of(schema)) > FIELDS_MAX:
        raise UsageError(f"the payloads have {found:,} fields, more than {FIELDS_MAX:,}: name those wanted in schema=")
    return schema, _kept(text, odd)


def _kept(text: Column, odd: Column | None) -> Column:
    from pyspark.sql import functions as f

    return text if odd is None else f.when(~odd, text)


def _asked(question: Callable[[str], bool], text: Column) -> Column:
    """`question` of each text, in the executors' Python; false for null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BooleanType

    def ask(texts: pd.Series) -> pd.Series:
        return texts.map(lambda each: isinstance(each, str) and question(each)).astype(bool)

    ask.__annotations__ = {}  # pyspark would look for pandas where it is only named
    made: Any = f.pandas_udf(ask, BooleanType(), f.PandasUDFType.SCALAR)
    column: Column = made(text)
    return column


def _inferred(df: DataFrame, text: Column, odd: Column | None) -> StructType:
    from pyspark.sql.types import StructType

    spark: Any = df.sparkSession
    texts = df.select(_kept(text, odd).alias("text"))
    strings = getattr(texts._jdf, "as")(spark._jvm.org.apache.spark.sql.Encoders.STRING())
    before = spark.conf.get(_CASE)
    # Else what a second message spells differently is taken for the first one's field, and silently null.
    spark.conf.set(_CASE, "true")
    try:
        found = spark._jsparkSession.read().option("mode", "DROPMALFORMED").json(strings.na().drop()).schema()
    finally:
        spark.conf.set(_CASE, before)
    schema: StructType = StructType.fromJson(json.loads(found.json()))
    return schema


# -- of one payload


def is_odd(text: str) -> bool:
    """Whether it is nested too deep, or an object in it has a name twice, whatever the case."""
    return is_deep(text) or has_twice(text)


def is_deep(text: str) -> bool:
    """Whether brackets are nested more than DEPTH_MAX deep."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEPTH_MAX:
            return True
    return False


def has_twice(text: str) -> bool:
    """Whether an object in it has a name twice, whatever the case. What is no JSON has none."""
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        twice = twice or len({name.lower() for name, _ in pairs}) < len(pairs)

    try:
        json.loads(text, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return False
    return twice


# -- of a schema


def titled(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """The names as titles of columns: prefixed until no two, nor one of those taken, differ by case alone."""
    seen = {name.lower() for name in taken}
    titles: list[str] = []
    for name in names:
        while name.lower() in seen:
            name = PREFIX + name
        seen.add(name.lower())
        titles.append(name)
    return titles


def distinct(kind: Any) -> Any:
    """A data type in whose structs, at every depth, names differ by more than case."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(distinct(kind.elementType), kind.containsNull)
    if not isinstance(kind, StructType):
        return kind
    titles = titled(kind.names, ())
    fields = [
        StructField(title, distinct(field.dataType), field.nullable)
        for title, field in zip(titles, kind.fields, strict=True)
    ]
    return StructType(fields)


def collides(kind: DataType) -> bool:
    """Whether names of one struct, at any depth, differ by case alone or not at all."""
    return any(len({name.lower() for name in each}) < len(each) for each in _structs(kind))


def fields_of(kind: DataType) -> int:
    """How many fields it has, at all depths."""
    return sum(map(len, _structs(kind)))


def _structs(kind: DataType) -> Iterable[list[str]]:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        yield from _structs(kind.elementType)
    elif isinstance(kind, StructType):
        yield list(kind.names)
        for field in kind.fields:
            yield from _structs(field.dataType)
