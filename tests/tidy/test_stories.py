"""Stories are told from outside: they touch nobody's private members."""

from __future__ import annotations

import ast

from .repository import ROOT, name, tree

# Of named tuples, public in spite of the underscore.
PUBLIC = {"_fields", "_replace", "_asdict", "_make"}


def test_stories_touch_no_privates() -> None:
    wrong = []
    for path in sorted((ROOT / "tests/stories").rglob("*.py")):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in PUBLIC:
                wrong.append(f"{name(path)}:{node.lineno} touches {node.attr}")
    assert not wrong, "\n".join(wrong)
