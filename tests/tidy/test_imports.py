"""Imports: which way they go, that none go in a circle, and that no module is left that nobody imports."""

from __future__ import annotations

import ast
import tomllib

from .repository import MAY_IMPORT, MODULES, PACKAGE, ROOT, circles, dotted, imports, name, text, top_folder, tree

# Those above all rooms may also use what users use: `lexicast`, `lexicast.sync`, `lexicast.mqtt`.
PUBLIC_USERS = {"raydp_jobs", "bench"}
# It imports nothing of ours: how modules are loaded, which whoever looks at this installation tells.
BELOW_ALL = {"compiled"}
HOME = {
    "ray": {"actors", "raydp_jobs", "bench"},
    "lmdb": {"storage", "bench"},  # bench: the paper's baselines on the same engine
    "zstandard": {"compression"},
    "zlib": {"compression", "bench"},  # bench: what peers do with it, beside ours
    "pyspark": {"raydp_jobs"},
    "raydp": {"raydp_jobs"},
}


def test_imports_go_one_way() -> None:
    wrong = []
    for path in MODULES + PACKAGE:
        own = top_folder(path)
        for imported, line in imports(path):
            parts = imported.split(".")
            if own and parts[0] == "lexicast":
                target = parts[1] if len(parts) > 1 else ""
                public = own in PUBLIC_USERS and target not in MAY_IMPORT
                if not public and target != own and target not in MAY_IMPORT[own] | BELOW_ALL:
                    wrong.append(f"{name(path)}:{line} must not import {imported}")
            if own not in HOME.get(parts[0], {own}):
                wrong.append(f"{name(path)}:{line}: {parts[0]} is for {', '.join(sorted(HOME[parts[0]]))} alone")
    assert not wrong, "\n".join(wrong)


def test_imports_are_relative_within_a_top_folder_and_absolute_across() -> None:
    wrong = []
    for path in MODULES + PACKAGE:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ImportFrom):
                continue
            where = f"{name(path)}:{node.lineno}"
            if node.level > max(1, len(path.relative_to(ROOT).parts) - 1):
                wrong.append(f"{where}: leaves its folder")
            if not node.level and top_folder(path):
                parts = (node.module or "").split(".")
                if parts[:2] == ["lexicast", top_folder(path)]:
                    wrong.append(f"{where}: write a relative import within a folder")
    assert not wrong, "\n".join(wrong)


def test_no_circle_of_imports_not_even_for_types() -> None:
    """Also none of those that only a type checker sees: who needs whom is the same."""
    known = {dotted(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        mine = graph.setdefault(dotted(path), set())
        for imported, _ in imports(path):
            target = imported if imported in known else imported.rpartition(".")[0]
            if target in known and target != dotted(path):
                mine.add(target)
    found = circles(graph)
    assert not found, "\n".join(" -> ".join(circle) for circle in found)


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_what_is_loaded_by_its_name_in_a_string_is_an_import_and_there() -> None:
    """No type checker looks into a string: a command would be found to be missing by whoever asks for it."""
    shell = {imported for imported, _ in imports(ROOT / "actors/cli/main.py")}
    assert {"lexicast.actors.cli.bus", "lexicast.actors.cli.acl"} <= shell
    there = {dotted(path) for path in MODULES + PACKAGE}
    for path in MODULES + PACKAGE:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
                loaded = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else ""
                assert not loaded.startswith("lexicast.") or loaded in there, f"{name(path)}:{node.lineno}: {loaded}"


def test_no_module_is_dead() -> None:
    """Each is imported by another one, also by its name in a string, is an entry point, or is run with `python -m`."""
    scripts = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["scripts"].values()
    alive = {script.split(":")[0] for script in scripts}
    for path in MODULES + PACKAGE:
        alive |= {imported for imported, _ in imports(path) if imported != dotted(path)}
        alive |= {imported.rpartition(".")[0] for imported, _ in imports(path)} - {dotted(path)}
    dead = [
        name(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py") and dotted(path) not in alive
        if '__name__ == "__main__"' not in text(path)
    ]
    assert not dead, f"nobody imports {', '.join(dead)}"
