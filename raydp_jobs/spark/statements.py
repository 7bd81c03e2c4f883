"""Statements of somebody else: questions about given tables, and nothing beside that.

Spark's SQL also writes tables, runs programs (TRANSFORM), calls any method of Java (`reflect`) and reads files by their
path, all of it as the user whose process asks. So a statement is walked through as the parser gives it, before anything
is analysed: each part of a plan is one that only reads, and its tables are those that there are. Beside that the
session has no functions that call into Java, and no files as tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any, Final

from lexicast.cluster.errors import UsageError

STATEMENT_BYTES_MAX: Final = 16 * 1024
# What a parsed statement may be made of; one of 16 KiB has some thousands.
PARTS_MAX: Final = 20_000
# Parts of plans as Spark 3.5's parser makes them of SELECT, WITH and VALUES.
READING: Final = frozenset(
    {
        *("Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin"),
        *("LocalLimit", "Offset", "OneRowRelation", "OneRowRelation$", "Pivot", "Project", "Sample", "Sort"),
        *("SubqueryAlias", "Union", "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable"),
        *("UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases"),
        *("UnresolvedTableValuedFunction", "UnresolvedWith", "Unpivot", "Window", "WithWindowDefinition"),
    }
)
# They call methods of Java.
REFLECTING: Final = ("reflect", "java_method", "try_reflect")
SETTINGS: Final = {"spark.sql.runSQLOnFiles": "false"}

_CATALYST: Final = "org.apache.spark.sql.catalyst"


def restrict(spark: Any) -> None:
    """Take from a session what reads more than its tables. For good: it is for statements of others alone."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    registry = spark._jsparkSession.sessionState().functionRegistry()
    for name in REFLECTING:
        registry.dropFunction(spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))


def check_statement(spark: Any, statement: str, tables: Collection[str]) -> None:
    """Raises UsageError: it is no question, or one of other tables; what Spark raises of its syntax."""
    if len(statement.encode()) > STATEMENT_BYTES_MAX:
        raise UsageError(f"a statement has {STATEMENT_BYTES_MAX:,} bytes at the most")
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    known, named = {each.lower() for each in tables}, set[str]()
    for part in _tree(spark._sc._gateway, plan):
        kind = part.getClass().getSimpleName()
        if _is(spark._sc._gateway, part, f"{_CATALYST}.plans.logical.LogicalPlan") and kind not in READING:
            raise UsageError(f"questions alone are answered here (SELECT, WITH, VALUES): {kind} is none")
        if kind == "UnresolvedRelation":
            named.add(str(part.multipartIdentifier().mkString(".")))
        elif kind == "UnresolvedWith":
            relations = part.cteRelations()
            known |= {str(relations.apply(at)._1()).lower() for at in range(relations.size())}
        elif kind == "UnresolvedFunction" and str(part.nameParts().last()).lower() in REFLECTING:
            raise UsageError(f"{part.nameParts().last()} calls methods of Java: not here")
    unknown = sorted([name for name in named if name.lower() not in known])
    if unknown:
        raise UsageError(f"the SQL names {', '.join(unknown)}: the tables are {', '.join(sorted(tables))}")


def _tree(gateway: Any, root: Any) -> Iterator[Any]:
    """All plans and expressions that a plan is made of, wherever they hang in it. Raises UsageError: too many."""
    java_object = import_module("py4j.java_gateway").JavaObject
    waiting, looked_at = [root], 0
    while waiting:
        each = waiting.pop()
        if not isinstance(each, java_object):  # a name, a number
            continue
        looked_at += 1
        if looked_at > PARTS_MAX:
            raise UsageError("the statement is too long")
        if _is(gateway, each, f"{_CATALYST}.trees.TreeNode"):
            yield each
        if _is(gateway, each, "scala.collection.Iterable"):
            parts = each.toSeq()
            waiting += [parts.apply(at) for at in range(parts.size())]
        elif _is(gateway, each, "scala.Product"):
            waiting += [each.productElement(at) for at in range(each.productArity())]


def _is(gateway: Any, each: Any, kind: str) -> bool:
    return bool(import_module("py4j.java_gateway").is_instance_of(gateway, each, kind))
