"""How a demo ends: its document written, its problems or its summary said, and the exit code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console


class Concluded(Protocol):
    """What a demo has found."""

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        ...

    def summary(self) -> str:
        """What is to be remembered, where there are no problems."""
        ...

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON document, in the form of all drivers."""
        ...


def conclude(found: Concluded, options: argparse.Namespace, console: Console) -> int:
    """Writes `options.json` where it is asked for; returns the exit code."""
    if options.json is not None:
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        options.json.write_text(json.dumps(found.document(plain), indent=2) + "\n")
    problems = found.problems()
    for problem in problems:
        console.print(problem, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if not problems:
        console.print(found.summary(), style="bold green", highlight=False)
    return 1 if problems else 0


def say_picture(picture: Path, console: Console) -> None:
    """Where a picture is."""
    console.print(f"picture: {picture}", soft_wrap=True, highlight=False)
