"""`python -m lexicast.testing.fuzz`: bytes from strangers, tried until something gives way.

Each target is code that takes bytes from somebody who is not trusted, with what must hold whatever comes
(docs/security.md).
An input that breaks that is written to the folder of inputs, and given again by --input.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from .running import CRASH_PREFIX, HAS_ATHERIS, run_for, watched
from .target import FuzzTarget

PROGRAM: Final = "python -m lexicast.testing.fuzz"
SECONDS: Final = 60.0
FOLDER: Final = Path("out/fuzz")
PURE: Final = "LEXICAST_PURE"


def _packets() -> FuzzTarget:
    from .packets import TARGET

    return TARGET


def _links() -> FuzzTarget:
    from .links import TARGET

    return TARGET


def _records() -> FuzzTarget:
    from .links import RECORDS

    return RECORDS


def _websocket() -> FuzzTarget:
    from .websocket import TARGET

    return TARGET


def _sealed() -> FuzzTarget:
    from .sealed import TARGET

    return TARGET


def _compressed(name: str) -> Callable[[], FuzzTarget]:
    def make() -> FuzzTarget:
        from . import compressed

        made: FuzzTarget = getattr(compressed, name)()
        return made

    return make


def _configured(name: str) -> Callable[[], FuzzTarget]:
    def make() -> FuzzTarget:
        from . import configured

        made: FuzzTarget = getattr(configured, name)()
        return made

    return make


TARGETS: Final[dict[str, Callable[[], FuzzTarget]]] = {
    "packets": _packets,
    "websocket": _websocket,
    "links": _links,
    "records": _records,
    "sealed": _sealed,
    **{name: _compressed(name) for name in ("tagged", "frames", "dictionaries", "fields")},
    "history": _compressed("link_past"),
    **{name: _configured(name) for name in ("passwords", "rules", "tokens", "conditions")},
}


def fuzz_options() -> argparse.ArgumentParser:
    """What may be asked for."""
    made = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("target", choices=sorted(TARGETS), help="what is tried")
    made.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"how long (default {SECONDS:.0f})")
    made.add_argument(
        "--folder", type=Path, metavar="F", help=f"where inputs are kept, and those that fail (default {FOLDER}/TARGET)"
    )
    made.add_argument("--input", type=Path, metavar="FILE", help="try this one alone")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command, in a process of its own where atheris watches: it sees what is imported under its eyes, and nothing
    that is compiled."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    told = fuzz_options().parse_args(given)
    if HAS_ATHERIS and told.input is None:
        here = [sys.executable, "-m", "lexicast.actors.testing.fuzzing", *given]
        return subprocess.run(here, env={**os.environ, PURE: "1"}, check=False).returncode
    return fuzz(given)


def fuzz(arguments: Sequence[str]) -> int:
    """0: everything held. (What does not ends it, or is raised.)"""
    told = fuzz_options().parse_args(arguments)
    with watched():
        target = TARGETS[told.target]()
    if told.input is not None:
        target.attempt(told.input.read_bytes())
        print(f"{told.target}: {told.input} is taken as it should be")
        return 0
    folder: Path = told.folder or FOLDER / told.target
    how = "atheris" if HAS_ATHERIS else "hypothesis"
    print(f"{told.target}: {told.seconds:.0f} s with {how}; inputs in {folder}, those that fail as {CRASH_PREFIX}...")
    run_for(target, told.seconds, folder)
    return 0
