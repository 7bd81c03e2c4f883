"""The repository as its own checks see it: its modules, their trees, and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# DESIGN: who may import whom. Within a top-level folder rooms may import each other, but never in a circle.
MAY_IMPORT = {
    "cluster": set[str](),
    "storage": {"cluster"},
    "compression": {"cluster"},
    "ft": {"cluster", "storage"},
    "actors": {"cluster", "storage", "compression", "ft"},
    "raydp_jobs": {"cluster", "storage", "compression", "ft", "actors"},
    "bench": {"cluster", "storage", "compression", "ft", "actors", "raydp_jobs"},
}

MODULES = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))]
PACKAGE = sorted([path for inner in ("*.py", "testing/*.py") for path in (ROOT / "src/lexicast").glob(inner)])
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name(path: Path) -> str:
    """As people write it: from the repository's root."""
    return str(path.relative_to(ROOT))


@cache
def text(path: Path) -> str:
    """What a file holds."""
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """A module, parsed."""
    return ast.parse(text(path))


def top_folder(path: Path) -> str:
    """The top-level folder a module belongs to; "" for the public API in src/lexicast."""
    return path.relative_to(ROOT).parts[0] if path not in PACKAGE else ""


def dotted(path: Path) -> str:
    """The name by which a module is imported."""
    inner = path.relative_to(ROOT / "src/lexicast" if path in PACKAGE else ROOT)
    parts = inner.with_suffix("").parts
    return ".".join(["lexicast", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of each import, `from a import b` as `a.b`, relative ones made absolute; wherever it is.

    What `import_module` loads by its name in a string is one, too: commands of the shell, of which only the one that is
    asked for is loaded, and actors, which take Ray.
    """
    package = ["lexicast", *path.relative_to(ROOT / "src/lexicast" if path in PACKAGE else ROOT).parts[:-1]]
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


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972), each in alphabetical order."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
