"""Compile the data path to machine code, where there is a C compiler: see `lexicast.compiled`.

What is there is kept when it was made from the sources as they are. Without a compiler nothing is written and the
sources run: slower, and otherwise the same. About two minutes of one core.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
sys.path.insert(0, str(SRC))

from lexicast import compiled  # noqa: E402

# Types are checked by `make lint`. Here only those of these modules count, so what they import from elsewhere is looked
# at as little as may be.
MYPY = """[mypy]
mypy_path = {src}
explicit_package_bases = True
namespace_packages = True
strict = True
follow_imports = silent
ignore_missing_imports = True

[mypy-ray.*,numpy.*,rich.*,typer.*,matplotlib.*,psutil.*,pydivsufsort.*,pyspark.*,raydp.*,pandas.*,pyarrow.*]
follow_imports = skip
"""


def modules() -> list[str]:
    """What pyproject.toml lists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return sorted(f"lexicast.{module}" for module in project["tool"]["lexicast"]["compiled"])


def imported(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, wherever in it; packages as their `__init__`."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(compiled.source_of(module).read_text(encoding="utf-8"))):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            named = [".".join(base), *[".".join([*base, alias.name]) for alias in node.names]]
        for name in named:
            if name.startswith("lexicast."):
                yield from [each for each in (name, f"{name}.__init__") if compiled.source_of(each).is_file()]


def sources_of(names: list[str]) -> list[str]:
    """These modules and all that they import of the package, directly or not: mypyc writes their constants into its
    code, whether they are compiled or not."""
    found, left = set(names), list(names)
    while left:
        fresh = set(imported(left.pop())) - found
        found |= fresh
        left += fresh
    return sorted(found)


def compiler() -> str | None:
    """The C compiler, if it can be used: it is there, and so are the interpreter's headers."""
    found = shutil.which(os.environ.get("CC", "cc"))
    return found if (Path(sysconfig.get_paths()["include"]) / "Python.h").exists() else None


def build(work: Path, names: list[str]) -> None:
    """Extension modules below `work`/out; mypyc's and the compiler's words into `work`/log."""
    (work / "mypy.ini").write_text(MYPY.format(src=SRC), encoding="utf-8")
    sources = [str(compiled.source_of(name)) for name in names]
    (work / "setup.py").write_text(
        "from mypyc.build import mypycify\n"
        "from setuptools import setup\n"
        f"made = mypycify(['--config-file=mypy.ini', *{sources!r}], multi_file=True)\n"
        "setup(name='compiled', packages=[], ext_modules=made)\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        "out",
        "--build-temp",
        "temporary",
        "-j",
        "2",
    ]
    with (work / "log").open("wb") as log:
        subprocess.run(command, cwd=work, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def install(out: Path, names: list[str]) -> None:
    """Put them where `lexicast.compiled` looks for them, the manifest last."""
    shutil.rmtree(compiled.FOLDER, ignore_errors=True)
    compiled.FOLDER.mkdir()
    shared = []
    for file in sorted(out.rglob("*.so")):
        module = ".".join([*file.relative_to(out).parts[:-1], file.name.partition(".")[0]])
        if module not in names:
            shared.append(module)
        shutil.copy2(file, compiled.FOLDER / f"{module}.so")
    sources = sources_of(names)
    manifest = {
        "interpreter": compiled.INTERPRETER,
        "sources": sources,
        "fingerprint": compiled.fingerprint([compiled.source_of(source) for source in sources]),
        "modules": names,
        "shared": shared,
    }
    (compiled.FOLDER / compiled.MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def main() -> int:
    """0 also where there is no compiler; 1 when compiling has failed."""
    names = modules()
    if compiled.sources_are_asked_for():
        return 0
    fits = compiled.fitting()
    if not isinstance(fits, str) and names == sorted(name for name in fits if name.startswith("lexicast.")):
        return 0
    if compiler() is None:
        print("no C compiler with Python's headers: lexicast runs from its sources, which is slower", flush=True)
        return 0
    print(f"compiling {len(names)} modules of the data path (some minutes, once) ...", flush=True)
    with TemporaryDirectory(prefix="lexicast-compile-") as folder:
        work = Path(folder)
        try:
            build(work, names)
        except subprocess.CalledProcessError:
            lines = (work / "log").read_text(errors="replace").splitlines()
            said = [line for line in lines if "error" in line.lower()][:20] or lines[-20:]
            print("\n".join(["compiling has failed; lexicast runs from its sources:", *said]), file=sys.stderr)
            return 1
        install(work / "out", names)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
