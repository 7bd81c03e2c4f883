"""Rooms: small enough to look around in, each with a line in ARCHITECTURE.md, and linked into the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .repository import MAY_IMPORT, ROOT, name, text, tree

MODULES_MAX = 20
ROOMS = sorted({path.parent for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*.py")})
ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def test_rooms_are_small() -> None:
    crowded = {name(room): found for room in ROOMS if (found := len(modules(room))) > MODULES_MAX}
    assert not crowded, f"rooms with more than {MODULES_MAX} modules: {crowded}"


def modules(room: Path) -> list[Path]:
    """Those that lie in a room itself."""
    return [path for path in room.glob("*.py") if path.name != "__init__.py"]


def test_each_room_has_its_line() -> None:
    """ARCHITECTURE.md: a table row a room, which says what the room's own docstring says."""
    told = dict(re.findall(r"(?m)^\| `([\w/]+)/` \| (.+) \|$", text(ARCHITECTURE)))
    assert sorted(told) == [name(room) for room in ROOMS]
    for room in ROOMS:
        own = room / "__init__.py"
        if own.exists():  # `compression` has none, and must not
            assert told[name(room)] == " ".join((ast.get_docstring(tree(own)) or "").split()), name(own)


def test_every_module_that_a_text_names_is_there() -> None:
    folders = "|".join(MAY_IMPORT)
    for page in [ARCHITECTURE, *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        for named in re.findall(rf"`((?:{folders}|tests)/[\w/]+\.py)`", text(page)):
            assert (ROOT / named).exists(), f"{name(page)} names {named}"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_every_top_folder_is_linked_into_the_package(folder: str) -> None:
    link = ROOT / "src/lexicast" / folder
    assert link.is_symlink(), f"src/lexicast/{folder} is no link"
    assert str(link.readlink()) == f"../../{folder}"
    # Python 3.14 has a module `compression` of its own, which ours would hide from the repository's folder.
    assert (ROOT / folder / "__init__.py").exists() is (folder != "compression")
