"""Whether a node is alive and ready, as probes and load balancers ask. Pure: what is known is given.

*Live*: the console answers. *Ready*: a broker of this node lets clients in, and reaches the leader of every topic
group, so that whatever is published there is stored: it hears of that leader, and has not waited for UNANSWERED_S for
an answer. While the coordination server is away data flows on, and a node
stays ready for COORDINATION_S; nothing can change places meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

COORDINATION_S: Final = 30.0
# Longer than any disk that counts takes, and than leaders that are lost are waited for.
UNANSWERED_S: Final = 2.5


class Readiness(NamedTuple):
    """`checks` by name; `reasons`: what is not as it should be, in words, also what does not keep it from serving."""

    ready: bool
    checks: dict[str, bool]
    reasons: list[str]


def readiness(brokers: Mapping[str, Mapping[str, Any] | str], away_s: float) -> Readiness:
    """`brokers`: what each broker of this node says (`OperatorQuestions.health`), or why it says nothing; `away_s`: for
    how long the coordination server has not been reached."""
    reasons = [f"{name} does not answer ({said})" for name, said in brokers.items() if isinstance(said, str)]
    said = {name: each for name, each in brokers.items() if not isinstance(each, str)}
    if not brokers:
        reasons.append("no broker of this node serves")
    for name, each in said.items():
        if each["leaving"]:
            reasons.append(f"{name} sends its clients to other nodes: this one is being drained")
        elif not each["listens"]:
            reasons.append(f"{name} does not let clients in yet")
        if waiting := each["groups_waiting"]:
            who = ", ".join(each["waits_for"]) or "a leader"
            reasons.append(f"{name}: {waiting:,} topic groups wait for {who}")
        if (unanswered_s := each["unanswered_s"]) >= UNANSWERED_S:
            reasons.append(f"{name}: what was published has not been answered for {unanswered_s:.0f} s")
    if away_s:
        reasons.append(f"the coordination server has not been reached for {away_s:.0f} s")
    checks = {
        "broker": bool(said),
        "clients": any([each["listens"] for each in said.values()]),
        "groups": any([each["listens"] and _stores(each) for each in said.values()]),
        "coordination": away_s < COORDINATION_S,
    }
    return Readiness(all(checks.values()), checks, reasons)


def _stores(said: Mapping[str, Any]) -> bool:
    """Whether what is published at a broker is stored, as far as it knows."""
    return not said["groups_waiting"] and bool(said["unanswered_s"] < UNANSWERED_S)
