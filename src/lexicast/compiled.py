"""The data path compiled to machine code (mypyc): the same modules, in the place of their sources.

`scripts/compile.py` writes extension modules and a manifest into FOLDER; a wheel carries them. They are used where the
manifest was made by this kind of interpreter from exactly the sources that are here, all of them or none: compiled
modules call each other without looking, and hold the constants of what they import. Else, and with LEXICAST_PURE=1 in
the environment, the sources run. Those are the reference: tests run against them, and those of the data path once more
against what was compiled.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PACKAGE: Final = Path(__file__).parent
FOLDER: Final = PACKAGE / "compiled_modules"
MANIFEST: Final = "manifest.json"
PURE: Final = "LEXICAST_PURE"
# What compiled code may be loaded by: the interpreter, its version and the machine.
INTERPRETER: Final = str(sysconfig.get_config_var("SOABI"))


class CompiledModules(MetaPathFinder):
    """Finds these modules (name -> extension module) before anybody looks for their sources."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        file = self.files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def fingerprint(sources: Sequence[Path]) -> str:
    """Of what these files hold, in this order."""
    digest = sha256()
    for source in sources:
        data = source.read_bytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def source_of(module: str) -> Path:
    """Where the source of a module of this package is."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def sources_are_asked_for() -> bool:
    """Whether the environment says so."""
    return os.environ.get(PURE, "") not in ("", "0")


def fitting(folder: Path = FOLDER) -> dict[str, Path] | str:
    """Module -> its compiled file, the part that they share among them; or why they are not used."""
    if sources_are_asked_for():
        return f"{PURE} is set"
    if not (folder / MANIFEST).exists():
        return "not compiled"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        interpreter, modules, shared = manifest["interpreter"], manifest["modules"], manifest["shared"]
        if interpreter != INTERPRETER:
            return f"compiled for {interpreter}"
        if manifest["fingerprint"] != fingerprint([source_of(source) for source in manifest["sources"]]):
            return "compiled from other sources"
        return {module: folder / f"{module}.so" for module in [*modules, *shared]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder / MANIFEST} cannot be read: {error!r}"


def use(folder: Path = FOLDER) -> None:
    """Import what is compiled from now on, where it fits."""
    found = fitting(folder)
    if not isinstance(found, str) and not any(isinstance(finder, CompiledModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompiledModules(found))


def state() -> str:
    """For people: whether compiled modules are used here, or why not."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, CompiledModules)), None)
    if finder is not None:
        return f"{len(finder.files)} compiled modules"
    found = fitting()
    return f"sources ({found if isinstance(found, str) else 'not asked for'})"
