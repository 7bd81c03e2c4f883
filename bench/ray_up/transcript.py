"""The transcript of a drill, as a page: what was typed and what was seen, without what is another one each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

# A terminal's colours, and what Ray puts before each of its lines where it does not write to one.
DRESS: Final = re.compile(r"\x1b\[[\d;]*m|(?m:^\d{4}-\d\d-\d\d [\d:,]+\t\w+ [\w.]+:\d+ -- )")
# What differs from run to run: ids, process ids, the time, how many groups a coordinator happens to lead.
VOLATILE: Final = (
    (r"/\S+/(?:operator|head|worker-\d)/home\b", "~"),
    (r"\b(cluster) [0-9a-f]{8}\b", r"\1 ID"),
    (r"\b(process) \d+", r"\1 PID"),
    (r"(?m)^\d\d:\d\d:\d\d ", ""),
    (r"\b\d+( topic groups? ha\w+ one copy)", r"N\1"),
    (r" for \d+ s\b", " for N s"),
)
WIDTH: Final = 118


def settled(output: str) -> list[str]:
    """An output's lines without what is another one each time, and without blank ones."""
    output = DRESS.sub("", output.replace("\r", ""))
    for pattern, word in VOLATILE:
        output = re.sub(pattern, word, output)
    return [line.rstrip() for line in output.splitlines() if line.strip()]


def matching(lines: Iterable[str], pattern: str) -> list[str]:
    """The lines in which `pattern` is found."""
    return [line for line in lines if re.search(pattern, line)]


def shown(lines: Iterable[str], pattern: str) -> list[str]:
    """The lines in which `pattern` is found, each once; `...` where others were left out."""
    kept: list[str] = []
    for line in lines:
        if not re.search(pattern, line):
            if kept[-1:] != ["..."]:
                kept.append("...")
        elif line not in kept:
            kept.append(line)
    return kept


class OperatorPage:
    """A page that is written while the drill runs."""

    def __init__(self, title: str, said: Callable[[str], None]) -> None:
        """`said` gets each heading when its part begins."""
        self._parts = [f"# {title}\n"]
        self._said = said

    def prose(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(" ".join(text.split()) + "\n")

    def heading(self, text: str) -> None:
        """A part begins."""
        self._said(text)
        self._parts.append(f"## {text}\n")

    def command(self, line: str, output: Iterable[str]) -> None:
        """What was typed, and what of its output is shown; several in a row are one block."""
        typed = "\n".join([f"$ {line}", *output])
        if self._parts[-1].endswith("\n```\n"):
            self._parts[-1] = self._parts[-1].removesuffix("```\n") + f"{typed}\n```\n"
        else:
            self._parts.append(f"```text\n{typed}\n```\n")

    def text(self) -> str:
        """The page, in Markdown."""
        return "\n".join([wrapped(part) for part in self._parts])


def wrapped(part: str) -> str:
    """A part with its prose broken at `WIDTH`."""
    if part.startswith(("```", "#")):
        return part
    lines = [""]
    for word in part.split():
        if len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines) + "\n"
