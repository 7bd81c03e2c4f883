"""The cluster on a data folder, judged by what it tells of itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..status.report import ROLES, Outage, warnings
from .findings import OK, PROBLEM, WARNING, Finding

CHECK: Final = "cluster"


class RunState(NamedTuple):
    """What run.json says. `is_alive`: the `lexicast up` that wrote it runs; `failure`: why it cannot be read."""

    folder: str
    run: dict[str, Any] | None
    is_alive: bool = False
    failure: str = ""

    @property
    def is_running(self) -> bool:
        """Whether a cluster is to be reached here."""
        return self.run is not None and self.is_alive

    def ports(self) -> frozenset[int]:
        """Those that it serves, or did."""
        if self.run is None:
            return frozenset()
        found = [self.run.get(f"mqtt_{kind}port", 0) for kind in ("", "tls_", "ws_", "wss_")]
        pages = [str(page).rstrip("/").rpartition(":")[2] for page in self.run.get("pages", ())]
        return frozenset([*filter(None, found), *[int(port) for port in pages if port.isdigit()]])


def run_finding(state: RunState) -> Finding:
    """Whether a cluster runs."""
    if state.failure:
        return Finding(CHECK, PROBLEM, state.failure, "run as the user of `lexicast up`, or stop it and start it again")
    if state.run is None:
        return Finding(CHECK, OK, f"none runs on {state.folder}")
    if not state.is_alive:
        so = f"`lexicast up` was killed on {state.folder} (process {state.run.get('up_pid')})"
        return Finding(CHECK, WARNING, so, "run `lexicast up` again, or `lexicast down` to end what it has left")
    return Finding(CHECK, OK, f"{str(state.run['cluster_id'])[:8]} runs on {state.folder}")


def unreachable_finding(failure: str) -> Finding:
    """It runs, and no broker answers."""
    to_do = "`lexicast status` asks Ray what becomes of its actors; else `lexicast down` and `lexicast up`"
    return Finding(CHECK, PROBLEM, f"its brokers cannot be asked: {failure}", to_do)


def served_findings(now: dict[str, Any]) -> Iterator[Finding]:
    """`now`: see `report.gather`. Its warnings say what is so and what to do in one sentence each."""
    told = list(warnings(now))
    for warning in told:
        yield Finding(CHECK, PROBLEM if isinstance(warning, Outage) else WARNING, str(warning))
    actors = sum([len(now.get(role, {})) for role in ROLES])
    groups = len(now["coordination"].get("group_states", {}))
    if not told:
        yield Finding(CHECK, OK, f"{actors + 1} actors serve {groups} topic groups, and none warns of anything")


def version_findings(now: dict[str, Any], own: str) -> Iterator[Finding]:
    """What else than `own` actors run, as far as they say."""
    found: dict[str, list[str]] = {}
    for role in ROLES:
        for name, actor in now.get(role, {}).items():
            if "version" in actor:
                found.setdefault(str(actor["version"]), []).append(name)
    others = {version: names for version, names in found.items() if version != own}
    for version, names in sorted(others.items()):
        so = f"{', '.join(sorted(names))} run lexicast {version}, here is {own}"
        yield Finding("versions", WARNING, so, "install one version everywhere, then `lexicast down` and `lexicast up`")
    if found and not others:
        yield Finding("versions", OK, f"all of the cluster runs lexicast {own}")
