"""The repository lints itself: directions of imports, sizes, docstrings, dead code, and what no file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lexicast.cluster.config.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent

# DESIGN: who may import whom. Within a folder everything may.
MAY_IMPORT = {
    "cluster": set[str](),
    "storage": {"cluster"},
    "compression": {"cluster"},
    "ft": {"cluster", "storage"},
    "actors": {"cluster", "storage", "compression", "ft"},
    "raydp_jobs": {"cluster", "storage", "compression", "ft", "actors"},
    "bench": {"cluster", "storage", "compression", "ft", "actors", "raydp_jobs"},
}
# Those above all rooms may also use what users use: `lexicast`, `lexicast.sync`, `lexicast.mqtt`.
PUBLIC_USERS = {"raydp_jobs", "bench"}
HOME = {
    "ray": {"actors", "raydp_jobs", "bench"},
    "lmdb": {"storage", "bench"},  # bench: the paper's baselines on the same engine
    "zstandard": {"compression"},
    "zlib": {"compression", "bench"},  # bench: what peers do with it, beside ours
    "pyspark": {"raydp_jobs"},
    "raydp": {"raydp_jobs"},
}
MODULE_LINES_MAX = 500
TEST_LINES_MAX = 800  # a list of cases may be longer than a mechanism
FUNCTION_LINES_MAX = 60
SYSTEMS = ["DualDB", "PREDICT", "TAPD", "REAPS", "SREM", "MigratoryData"]

MODULES = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))]
PACKAGE = sorted((ROOT / "src/lexicast").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_module = pytest.mark.parametrize("path", MODULES + PACKAGE, ids=name)
every_file = pytest.mark.parametrize("path", MODULES + PACKAGE + TESTS, ids=name)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def folder(path: Path) -> str:
    """The folder a module belongs to; "" for the public API in src/lexicast."""
    return path.relative_to(ROOT).parts[0] if path not in PACKAGE else ""


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of each import, `from a import b` as `a.b`, relative ones made absolute; wherever it is."""
    package = ["lexicast", *path.relative_to(ROOT).parts[:-1]] if path not in PACKAGE else ["lexicast"]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from ((".".join([*base, alias.name]), node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node.lineno


@every_module
def test_imports_go_one_way(path: Path) -> None:
    own = folder(path)
    for imported, line in imports(path):
        parts = imported.split(".")
        if own and parts[0] == "lexicast":
            target = parts[1] if len(parts) > 1 else ""
            if own in PUBLIC_USERS and target not in MAY_IMPORT:
                continue
            assert target == own or target in MAY_IMPORT[own], f"{name(path)}:{line} must not import {imported}"
        if parts[0] in HOME:
            allowed = HOME[parts[0]]
            assert own in allowed, f"{name(path)}:{line}: {parts[0]} is for {', '.join(sorted(allowed))} alone"


@every_module
def test_imports_are_relative_within_a_folder_and_absolute_across(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ImportFrom):
            continue
        where = f"{name(path)}:{node.lineno}"
        if node.level:
            assert node.level <= max(1, len(path.relative_to(ROOT).parts) - 1), f"{where}: leaves its folder"
        elif folder(path):
            parts = (node.module or "").split(".")
            assert parts[:2] != ["lexicast", folder(path)], f"{where}: write a relative import within a folder"


@every_file
def test_modules_are_short_and_say_what_they_are_for(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    most = TEST_LINES_MAX if path in TESTS else MODULE_LINES_MAX
    assert lines <= most, f"{name(path)} has {lines} lines, more than {most}: one mechanism a module"
    assert ast.get_docstring(tree(path)), f"{name(path)} has no docstring"


@every_file
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{name(path)}:{node.lineno} {node.name} has {lines} lines"


@every_file
def test_exceptions_to_the_checkers_are_explained(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        marked = re.search(r"#\s*(type:\s*ignore|noqa)(.*)$", line)
        if marked and path != Path(__file__).resolve():
            why = r"(\[[\w, -]+\]|: [A-Z]+\d+) +(#|-) \S.{5}"
            assert re.match(why, marked[2]), f"{name(path)}:{number}: name the rule, and say why after ' - '"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["lexicast", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def test_no_module_is_dead() -> None:
    """Each is imported by another one, is an entry point, or is run with `python -m`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"].values()
    alive = {script.split(":")[0] for script in scripts}
    for path in MODULES + PACKAGE:
        alive |= {imported for imported, _ in imports(path) if imported != dotted(path)}
        alive |= {imported.rpartition(".")[0] for imported, _ in imports(path)} - {dotted(path)}
    dead = [
        name(path)
        for path in MODULES
        if path.name != "__init__.py" and dotted(path) not in alive
        if '__name__ == "__main__"' not in path.read_text(encoding="utf-8")
    ]
    assert not dead, f"nobody imports {', '.join(dead)}"


def test_every_folder_is_linked_into_the_package() -> None:
    for each in MAY_IMPORT:
        link = ROOT / "src/lexicast" / each
        assert link.is_symlink(), f"src/lexicast/{each} is no link"
        assert str(link.readlink()) == f"../../{each}"
        # Python 3.14 has a module `compression` of its own, which ours would hide from the repository's folder
        assert (ROOT / each / "__init__.py").exists() is (each != "compression")


def test_every_knob_is_used() -> None:
    others = [path for path in MODULES + PACKAGE if path.name not in ("config.py", "knobs.py")]
    words = {word for path in others for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    unused = [f"{table}.{key}" for table, keys in TABLES.items() for key in keys if key not in words]
    assert not unused, f"nobody reads {', '.join(unused)}"


@cache
def texts() -> list[tuple[str, str]]:
    """(name, text) of every text file that git has or would take."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    found = []
    for each in names:
        path = ROOT / each
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                found.append((each, data.decode("utf-8", "replace")))
    return found


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a path of one machine", r"(?<![\w.~}$/-])/(?:work|root|Users|home/\w+)/\w"),
        ("a path of one machine", r"(?<![\w.])/tmp" + r"/w/"),
        ("a registry's host", r"\b(?:files\.pythonhosted|pypi|registry\.npmjs|deb\.debian|proxy\.golang)\.org\b"),
        ("a conflict mark", r"(?m)^(?:<{7}|>{7}) "),
        ("unfinished work", r"\b(?:TO" + r"DO|FIX" + r"ME|X{3})\b"),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    for each, text in texts():
        found = re.search(pattern, text)
        assert not found, f"{each}: {found and found[0]!r} is {what}"


def test_dependencies_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pins.items()}
    wanted = project["dependencies"] + [each for extra in project["optional-dependencies"].values() for each in extra]
    for requirement in wanted:
        found = re.match(r"([\w-]+)(?:\[\w+\])?(?:==(\S+))?$", requirement)
        assert found, f"{requirement}: give a package, or one exact version of it"
        version = pinned.get(found[1].lower())
        assert version, f"{requirement} is not in constraints.txt"
        assert not found[2] or re.fullmatch(found[2].replace("*", r"[\d.]+"), version), f"{requirement}: {version}"


def test_the_readme_names_the_systems_it_builds_on() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [system for system in SYSTEMS if system not in readme]
    assert not missing, f"README.md does not name {', '.join(missing)}"
