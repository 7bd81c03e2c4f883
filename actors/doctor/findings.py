"""What a check finds: a state, one line of what is so, one of what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

PROBLEM: Final = "problem"
WARNING: Final = "warning"
OK: Final = "ok"
STATES: Final = (PROBLEM, WARNING, OK)  # the worst first


class Finding(NamedTuple):
    """`check`: what was looked at, in a word or two; `to_do` is empty where nothing is to be done."""

    check: str
    state: str
    is_so: str
    to_do: str = ""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The same, problems before warnings before what is fine; else in their order."""
    return sorted(findings, key=lambda finding: STATES.index(finding.state))


def counted_states(findings: Iterable[Finding]) -> dict[str, int]:
    """How many there are of each state, of all states."""
    counts = dict.fromkeys(STATES, 0)
    for finding in findings:
        counts[finding.state] += 1
    return counts
