"""What rules cost a message: the loads of `bench.fanout` and `bench.fanin` with 1,000 users' 5,000 rules and without.

    acl_fanout_ratio    the least, over the loads of fan-out, of deliveries/s with rules over those without
    acl_fanin_ratio     the same of fan-in

Two clusters at the same time, in turns. The generator has not logged in: what it may do are rules of `topic` for
whoever has not and a pattern, beside those of the users.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..report import DriverReport
from .loads import measure_beside

USERS: Final = 1_000
RULES_A_USER: Final = 5


def rules_text() -> str:
    """The acl file."""
    lines = ["topic write +/#", "topic readwrite #", "topic deny secret/#", "pattern readwrite own/%c/#"]
    for number in range(USERS):
        lines.append(f"user user-{number}")
        lines += [f"topic readwrite site-{number % 10}/user-{number}/part-{part}/#" for part in range(RULES_A_USER)]
    return "\n".join([*lines, ""])


def measure_rules(report: DriverReport) -> None:
    """Everything of this part; see `loads.measure_beside`."""
    measure_beside(report, "acl", "rules", _config)


def _config(folder: Path) -> str:
    rules = folder / "rules"
    rules.write_text(rules_text())
    rules.chmod(0o600)
    return f'[security]\nacl_file = "{rules}"\n'
