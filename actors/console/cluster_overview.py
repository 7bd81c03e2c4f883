"""The cluster's status as an overview: what is wrong first, then a row an actor, a node. Pure, and of a bounded size.

What can be many (topic groups, sessions, families) is counted here, and has pages of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..status.leaders import leader_reports
from ..status.nodes import node_reports
from ..status.report import ROLES

WARNINGS_MAX: Final = 200
WARNING_LETTERS_MAX: Final = 1_000
ERROR_LETTERS_MAX: Final = 200
ROWS_MAX: Final = 1_000


def overview(now: dict[str, Any]) -> dict[str, Any]:
    """`now`: see `report.gather`. docs/http.md says what is in it."""
    said, warnings = now["coordination"], now["warnings"]
    actors = [_actor(now, role, kind, name, each) for role, kind in ROLES.items() for name, each in _named(now, role)]
    nodes = node_reports(now) if "nodes" in said else {}
    states = said["group_states"].values()
    return {
        "time": now["time"],
        "cluster": {
            "id": said["cluster_id"],
            "started": said["started_us"] / 1_000_000 if "started_us" in said else None,
            "groups": said["groups"],
            "groups_without_leader": sum([not leader for _, leader, _ in states]),
            "copies_wanted": said.get("copies"),
            "coordination": "error" not in said,
        },
        "warnings": [str(each)[:WARNING_LETTERS_MAX] for each in warnings[:WARNINGS_MAX]],
        "warnings_left_out": max(0, len(warnings) - WARNINGS_MAX),
        "rates": now["rates"],
        "counts": _counts(now),
        "nodes": [{"name": name, **report._asdict()} for name, report in sorted(nodes.items())][:ROWS_MAX],
        "leaders": [{"name": name, **led._asdict()} for name, led in leader_reports(now).items()][:ROWS_MAX],
        "actors": actors[:ROWS_MAX],
        "left_out": max(0, len(actors) - ROWS_MAX) + max(0, len(nodes) - ROWS_MAX),
    }


def _named(now: dict[str, Any], role: str) -> list[tuple[str, dict[str, Any]]]:
    return sorted(now.get(role, {}).items())


def _counts(now: dict[str, Any]) -> dict[str, int]:
    """Of the whole cluster."""
    brokers = [each for each in now["brokers"].values() if "error" not in each]
    stores = [each["store"] for each in now["coordinators"].values() if "store" in each]
    families = {name for each in now["sampling"].values() for name in each.get("families", ())}
    return {
        "connections": sum([each["mqtt"]["connections"] for each in brokers]),
        "python_clients": sum([each["clients"] for each in brokers]),
        "sessions": sum([store["sessions"] for store in stores]),
        "topics": sum([store["topics"] for store in stores]),
        "stored_records": sum([store["records"] for store in stores]),
        "store_bytes": sum([store["used_bytes"] for store in stores]),
        "families": len(families),
        "raw_bytes": sum([each["stored"]["raw_bytes"] for each in brokers]),
        "stored_bytes": sum([each["stored"]["stored_bytes"] for each in brokers]),
    }


def _actor(now: dict[str, Any], role: str, kind: str, name: str, said: dict[str, Any]) -> dict[str, Any]:
    member = now["coordination"]["members"].get(kind, {}).get(name, {})
    state = "does not answer" if "error" in said else "gave up" if said.get("failure") else "serves"
    row = {
        "name": name,
        "kind": kind,
        "state": state,
        "node": member.get("node", ""),
        "pid": member.get("pid"),
        "starts": member.get("incarnation"),
        **said.get("rates", {}),
    }
    if "error" in said:
        row |= {"error": str(said["error"])[:ERROR_LETTERS_MAX], "fate": said.get("fate", "")}
    if role == "brokers" and "mqtt" in said:
        row |= {"connections": said["mqtt"]["connections"], "sessions": said["mqtt"]["sessions"]}
        row |= {"python_clients": said["clients"], "filters": said["filters"], "catching_up": said["catching_up"]}
    if role == "coordinators" and "store" in said:
        store = said["store"]
        row |= {key: store[key] for key in ("used_bytes", "free_bytes", "topics", "sessions", "full")}
        row |= {"groups": said["groups"], "full_in_s": said["full_in_s"]}
    return row


def group_rows_behind(now: dict[str, Any], after: int) -> list[dict[str, Any]]:
    """Topic groups beyond the number `after`, in order: who leads each, its epoch, who counts."""
    states = {int(group): state for group, state in now["coordination"]["group_states"].items()}
    lost = set(now["coordination"].get("lost", ()))
    return [
        {
            "group": group,
            "epoch": states[group][0],
            "leader": states[group][1],
            "in_sync": list(states[group][2]),
            "reached": states[group][1] not in lost and states[group][1] != "",
        }
        for group in sorted(states)
        if group > after
    ]


def family_rows(now: dict[str, Any]) -> list[dict[str, Any]]:
    """Topic families as their sampling brokers tell of them, by name."""
    found = {name: each for said in now["sampling"].values() for name, each in said.get("families", {}).items()}
    return [{"name": name, **found[name]} for name in sorted(found)]


def lagging_rows(rows: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Clients that have most to catch up with, of what brokers tell of theirs (`clients_lagging`) and under "broker"
    their names."""
    return sorted(rows, key=lambda row: (-row["behind_records"], row["id"], row["broker"]))[:count]
