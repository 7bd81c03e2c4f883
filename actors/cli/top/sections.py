"""The tables of `lexicast top`: what is in each, in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ...status.printable import printable
from ...status.report import between, saved_bytes, size, span

NAME: Final = "name"
CLIENTS: Final = "clients"
MESSAGES: Final = "messages"
BYTES: Final = "bytes"
ORDERS: Final = (NAME, CLIENTS, MESSAGES, BYTES)
SERVES: Final = "serves"

# What `figures.TopFigures.now` gives.
Figures: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]


class Section(NamedTuple):
    """One table: the names of its columns, the first one's its title, and its rows, what is wrong first. `wrong`: how
    many of them are."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    wrong: int = 0


def sections(now: Figures, order: str) -> list[Section]:
    """All that there are; `order`: one of ORDERS, by which those are sorted that have such a column."""
    found = (_nodes(now, order), _brokers(now, order), _groups(now, order), _topics(now, order))
    return [each for each in (*found, _families(now, order), _lagging(now, order)) if each is not None]


def _nodes(now: Figures, order: str) -> Section | None:
    """Where there are several."""
    if len(now["nodes"]) < 2:
        return None
    rows = _sorted(now["nodes"], order, {CLIENTS: lambda row: row["clients"]})
    shown = [
        (_named(row), row["location"], *[f"{row[key]:,}" for key in ("leads", "copies", "clients")]) for row in rows
    ]
    return Section(("nodes", "location", "leads", "copies", "clients"), shown, _wrong(rows))


def _brokers(now: Figures, order: str) -> Section:
    rows = _sorted(
        [row for row in now["actors"] if row["kind"] == "broker"],
        order,
        {
            CLIENTS: lambda row: row.get("connections", 0) + row.get("python_clients", 0),
            MESSAGES: lambda row: row.get("published_per_s", 0) + row.get("delivered_per_s", 0),
            BYTES: lambda row: row.get("received_bytes_per_s", 0) + row.get("sent_bytes_per_s", 0),
        },
    )
    shown = []
    for row in rows:
        clients = [f"{row[key]:,}" if key in row else "" for key in ("connections", "python_clients")]
        messages = [f"{row[key]:,.0f}" if key in row else "" for key in ("published_per_s", "delivered_per_s")]
        octets = [size(row[key]) if key in row else "" for key in ("received_bytes_per_s", "sent_bytes_per_s")]
        behind = f"{row['catching_up']:,}" if "catching_up" in row else ""
        shown.append((_named(row), *clients, *messages, *octets, behind))
    return Section(
        ("brokers", "MQTT", "Python", "in/s", "out/s", "bytes in", "bytes out", "behind"), shown, _wrong(rows)
    )


def _groups(now: Figures, order: str) -> Section:
    """By leader."""
    coordinators = {row["name"]: row for row in now["actors"] if row["kind"] == "coordinator"}
    leaders = [
        {"stored_per_s": 0, "state": SERVES if row["name"] else "", **coordinators.get(row["name"], {}), **row}
        for row in now["leaders"]
    ]
    rows = _sorted(leaders, order, {MESSAGES: lambda row: row["stored_per_s"], BYTES: lambda row: row["stored_per_s"]})
    shown = [
        (
            _named(row) if row["name"] else "nobody leads",
            f"{row['groups']:,}",
            between(row["epoch_min"], row["epoch_max"]),
            between(row["copies_min"], row["copies_max"]),
            "" if row["behind_records"] is None else f"{row['behind_records']:,}",
            f"{row['stored_per_s']:,.0f}",
            size(row["used_bytes"]) if "used_bytes" in row else "",
        )
        for row in rows
    ]
    columns = ("leaders", "groups", "epochs", "copies", "lag", "stored/s", "store")
    return Section(columns, shown, _wrong(rows))


def _topics(now: Figures, order: str) -> Section | None:
    """Of a sample. None while nothing is known."""
    if now["topics"] is None:
        return None
    rows = now["topics"] if order != NAME else sorted(now["topics"], key=lambda row: str(row["name"]))
    return Section(
        ("busiest topics, sampled", "messages/s"), [(printable(row["name"]), f"{row['per_s']:,.1f}") for row in rows]
    )


def _families(now: Figures, order: str) -> Section | None:
    if not now["families"]:
        return None
    rows = _sorted(
        now["families"],
        order,
        {MESSAGES: lambda row: row["messages"], BYTES: saved_bytes, CLIENTS: saved_bytes},
    )
    shown = []
    for row in rows:
        percent = f"{100 * saved_bytes(row) / max(row['raw_bytes'], 1):.1f}%"
        octets = (size(row["raw_bytes"]), size(saved_bytes(row)), percent)
        shown.append((printable(row["name"]), f"{row['messages']:,}", *octets, str(row["codec"] or "")))
    saved = "saved" if _has_aware(now["families"]) else "possible"
    return Section(("families, sampled", "messages", "raw", saved, "", "codec"), shown)


def _has_aware(families: Iterable[Row]) -> bool:
    """Whether somebody is there whose link is spared what is saved."""
    return any(row["aware_subscribers"] or row["aware_publishers"] for row in families)


def _lagging(now: Figures, order: str) -> Section | None:
    if not now["lagging"]:
        return None
    rows = now["lagging"] if order != NAME else sorted(now["lagging"], key=lambda row: str(row["id"]))
    shown = [
        (
            printable(row["id"]),
            row["kind"],
            row["broker"],
            span(now["time"] - row["since_us"] / 1_000_000),
            f"{row['behind_records']:,}",
        )
        for row in rows
    ]
    return Section(("behind", "kind", "broker", "connected", "records"), shown)


def _sorted(rows: Iterable[Row], order: str, orders: dict[str, Callable[[Row], float]]) -> list[Row]:
    """What is wrong first; then by what is most of, or by name."""
    value = orders.get(order, _alike)
    return sorted(rows, key=lambda row: (row.get("state", SERVES) == SERVES, -value(row), str(row["name"])))


def _alike(_: Row) -> float:
    return 0


def _named(row: Row) -> str:
    state = row.get("state", SERVES)
    return str(row["name"]) if state == SERVES else f"{row['name']}: {state}"


def _wrong(rows: Iterable[Row]) -> int:
    return sum([row.get("state", SERVES) != SERVES for row in rows])
