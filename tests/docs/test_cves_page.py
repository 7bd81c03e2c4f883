"""docs/cves.md: each entry names tests that show it, and each test that shows one stands there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/cves.md"
ROW = re.compile(r"(?m)^\| (CVE-\d{4}-\d{4,6}) \| (.+) \| (.+) \| (.+) \|$")


def shown() -> dict[str, set[str]]:
    """Of each CVE the tests that are marked with it: file and function."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.cve(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.cve":
                        for argument in mark.args:
                            found[ast.literal_eval(argument)].add(f"{path.relative_to(ROOT)}::{node.name}")
    return dict(found)


def told() -> dict[str, set[str]]:
    """Of each CVE on the page the tests that its row names."""
    return {row[0]: set(re.findall(r"`(tests/[\w/.]+::\w+)`", row[3])) for row in ROW.findall(PAGE.read_text())}


def test_the_page_and_the_tests_name_the_same() -> None:
    assert told() == shown()


def test_each_is_told_once_and_with_all_that_there_is_to_tell() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len({row[0] for row in rows}) == len(rows) >= 50
    assert all(len(what) > 20 and len(answer) > 20 for _, what, answer, _ in rows)
