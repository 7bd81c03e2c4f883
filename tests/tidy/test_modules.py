"""Modules, classes and functions: short, explained, and each with a name of its own."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from lexicast.cluster.config.tables import TABLES

from .repository import MODULES, PACKAGE, TESTS, name, text, tree

MODULE_LINES_MAX = 500
TEST_LINES_MAX = 800  # a list of cases may be longer than a mechanism
FUNCTION_LINES_MAX = 60
METHODS_MAX = 25
EVERY = MODULES + PACKAGE + TESTS

# What drivers and commands have in common, and what a command is called by whoever types it.
COMMON = {"main", "parse", "measure", "draw", "run", "tell", "create", "serve"}
COMMAND_ROOMS = ("actors/cli/", "raydp_jobs/cli/", "bench/")
# `lexicast.connect` and `lexicast.sync.connect` are the same to their users, awaited and not.
TWINS = {"connect"}


def test_modules_are_short_and_say_what_they_are_for() -> None:
    wrong = []
    for path in EVERY:
        lines, most = len(text(path).splitlines()), TEST_LINES_MAX if path in TESTS else MODULE_LINES_MAX
        if lines > most:
            wrong.append(f"{name(path)} has {lines} lines, more than {most}: one mechanism a module")
        if not ast.get_docstring(tree(path)):
            wrong.append(f"{name(path)} has no docstring")
    assert not wrong, "\n".join(wrong)


def test_functions_are_short() -> None:
    wrong = []
    for path in EVERY:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{name(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def explained(path: Path, node: ast.ClassDef) -> bool:
    """Whether a comment above the class says why it has so many methods."""
    first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
    above = text(path).splitlines()[: first - 1]
    comment = []
    while above and above[-1].startswith("#"):
        comment.append(above.pop())
    return bool(comment) and comment[-1].startswith(f"# More than {METHODS_MAX} methods: ")


def test_classes_are_one_mechanism() -> None:
    wrong = []
    for path in MODULES + PACKAGE:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                methods = sum([isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body])
                if methods > METHODS_MAX and not explained(path, node):
                    wrong.append(
                        f"{name(path)}:{node.lineno} {node.name} has {methods} methods: split it, or say why above it "
                        f"(# More than {METHODS_MAX} methods: ...)"
                    )
    assert not wrong, "\n".join(wrong)


def test_one_name_has_one_meaning() -> None:
    """No two public classes are named alike, nor two public functions of the product."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        shared = COMMON | TWINS if not name(path).startswith(COMMAND_ROOMS) else None
        for node in tree(path).body:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name[0] == "_":
                continue
            if not function or (shared is not None and node.name not in shared):
                places[node.name].append(name(path))
    wrong = [f"{each}: {', '.join(where)}" for each, where in sorted(places.items()) if len(where) > 1]
    assert not wrong, "\n".join(wrong)


def test_exceptions_to_the_checkers_are_explained() -> None:
    wrong = []
    for path in EVERY:
        for number, line in enumerate(text(path).splitlines(), 1):
            marked = re.search(r"#\s*(type:\s*ignore|noqa)(.*)$", line)
            if marked and path != Path(__file__).resolve():
                why = r"(\[[\w, -]+\]|: [A-Z]+\d+) +(#|-) \S.{5}"
                if not re.match(why, marked[2]):
                    wrong.append(f"{name(path)}:{number}: name the rule, and say why after ' - '")
    assert not wrong, "\n".join(wrong)


def test_every_knob_is_used() -> None:
    others = [path for path in MODULES + PACKAGE if not name(path).startswith("cluster/config/")]
    words = {word for path in others for word in re.findall(r"\w+", text(path))}
    unused = [f"{table}.{key}" for table, keys in TABLES.items() for key in keys if key not in words]
    assert not unused, f"nobody reads {', '.join(unused)}"
