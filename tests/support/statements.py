"""Which of MQTT's normative statements which tests prove: the table, and the marks on tests, read off their sources."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "mqtt_statements.toml"
VERSIONS = {"mqtt": "mqtt5", "mqtt311": "mqtt311"}
_ID = re.compile(r"MQTT-\d+\.\d+\.\d+-\d+")


class Statement(NamedTuple):
    """One statement. `binds`: "server", "client" or "both"; `same`: what says the same in MQTT 5; `why` there is no
    test."""

    version: str
    id: str
    binds: str
    says: str
    same: str = ""
    why: str = ""


class Claim(NamedTuple):
    """A test that proves a statement: `where` as pytest names it."""

    version: str
    id: str
    where: str


def statements() -> list[Statement]:
    """The table."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [
        Statement(version, name, row["binds"], row["says"], row.get("as", ""), row.get("why", ""))
        for version in VERSIONS.values()
        for name, row in table[version].items()
    ]


def claims() -> list[Claim]:
    """What the tests' marks say, and the rows of tables that tests are given."""
    found: list[Claim] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "MQTT-" in text:
            found += _claims(path.relative_to(ROOT).as_posix(), ast.parse(text))
    return found


def _claims(where: str, module: ast.Module) -> Iterator[Claim]:
    tables = {name: value for node in module.body for name, value in _assigned(node)}
    for test in module.body:
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        for mark in test.decorator_list:
            version = _version(mark)
            if version:
                yield from (Claim(version, name, f"{where}::{test.name}") for name in _texts(mark))
            else:
                named = [each.id for each in ast.walk(mark) if isinstance(each, ast.Name) and each.id in tables]
                ids = {name for table in named for name in _texts(tables[table]) if _ID.fullmatch(name)}
                yield from (Claim("mqtt5", name, f"{where}::{test.name}") for name in sorted(ids))


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment to a name."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def _version(mark: ast.expr) -> str:
    """The version whose statements a mark names; "" for another mark."""
    called = mark.func if isinstance(mark, ast.Call) else None
    return VERSIONS.get(called.attr, "") if isinstance(called, ast.Attribute) else ""


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def proved(table: list[Statement], found: list[Claim]) -> dict[tuple[str, str], list[str]]:
    """(version, statement) -> the tests that prove it, those of MQTT 5 where that says the same."""
    tests: dict[tuple[str, str], list[str]] = {(each.version, each.id): [] for each in table}
    for claim in found:
        tests.setdefault((claim.version, claim.id), []).append(claim.where)
    return {
        (each.version, each.id): sorted({*tests[each.version, each.id], *tests.get(("mqtt5", each.same), [])})
        for each in table
    }
