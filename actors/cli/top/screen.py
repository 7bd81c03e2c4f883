"""What `lexicast top` has shown, as lines that fit the terminal. Pure."""

from __future__ import annotations

import textwrap
import time
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ...status.printable import printable
from ...status.report import size, span
from .sections import MESSAGES, ORDERS, Figures, Section, sections

# Rows of a table where there is no screen to be filled.
ROWS_SHOWN: Final = 20
NAME_LETTERS_MIN: Final = 12
GAP: Final = 2
WARNING_LINES_MAX: Final = 3
CUT: Final = "..."


class View(NamedTuple):
    """What whoever looks has chosen: by what is sorted, and which table is shown alone (from 1; 0: all)."""

    order: str = MESSAGES
    alone: int = 0

    def pressed(self, key: str) -> View | None:
        """The view after a key; None: it is over."""
        if key == "q":
            return None
        if key == "s":
            return self._replace(order=ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)])
        for order in ORDERS:
            if key == order[0]:
                return self._replace(order=order)
        return self._replace(alone=int(key)) if key in tuple("0123456789") else self


def screen(now: Figures, view: View, width: int, height: int | None, wrong: str = "") -> list[Text]:
    """The lines: exactly what fits in `height`; None: there is no screen, so ROWS_SHOWN rows of each table, no keys.
    `wrong`: why there is nothing newer."""
    head = _head(now, width, wrong)
    tables = sections(now, view.order)
    count = len(tables)
    if height is not None:
        tables = [_numbered(table, number) for number, table in enumerate(tables, 1)]
    if 0 < view.alone <= count:
        tables = [tables[view.alone - 1]]
    if height is None:
        lines = [*head, *_warned(now, wrong, width, None)]
        for table in tables:
            lines += [Text(""), *_table(table, min(len(table.rows), ROWS_SHOWN), width)]
        return lines
    room = height - len(head) - 1
    warned = _warned(now, wrong, width, max(1, room // 3))
    for table, rows in _shared_out(tables, room - len(warned)):
        warned += _table(table, rows, width)
    filled = (head + warned)[: max(0, height - 1)]
    filled += [Text("")] * (height - 1 - len(filled))
    lines = [*filled, _keys(view, count, width)]
    for line in lines:
        line.truncate(width, overflow="crop")  # where not even the shortest of its words has room
    return lines


def _numbered(table: Section, number: int) -> Section:
    """As the key for it."""
    return table._replace(columns=(f"{number} {table.columns[0]}", *table.columns[1:]))


def _head(now: Figures, width: int, wrong: str) -> list[Text]:
    cluster, rates, counts = now["cluster"], now["rates"], now["counts"]
    up = f", up {span(now['time'] - cluster['started'])}" if cluster["started"] is not None else ""
    many = f", {len(now['nodes'])} nodes" if len(now["nodes"]) > 1 else ""
    clock = time.strftime("%H:%M:%S", time.localtime(now["time"]))
    first = f"lexicast {cluster['id'][:8]}{many}, {cluster['groups']:,} topic groups{up}"
    clock = f"as of {clock}" if wrong else clock
    second = (
        f"clients {counts['connections'] + counts['python_clients']:,}  "
        f"stored {rates.get('stored_per_s', 0):,.0f}/s  delivered {rates.get('delivered_per_s', 0):,.0f}/s  "
        f"in {size(rates.get('received_bytes_per_s', 0))}/s  out {size(rates.get('sent_bytes_per_s', 0))}/s"
    )
    left = max(0, width - cell_len(clock) - 1)
    return [
        Text(_fitted(first, left) + " " + clock, style="bold"),
        Text(_cut(second, width)),
    ]


def _warned(now: Figures, wrong: str, width: int, lines: int | None) -> list[Text]:
    """Each thing that is wrong in WARNING_LINES_MAX lines, as long as there are lines; then how many are left out."""
    told = [*([wrong] if wrong else ()), *now["warnings"]]
    left_out = int(now["warnings_left_out"])
    if now["missing"]:
        told.append(f"who is behind at {', '.join(now['missing'])} is not known: it does not answer")
    if not told:
        return [Text("Nothing is wrong.", style="green")]
    found: list[str] = []
    for at, each in enumerate(told):
        wrapped = _wrapped(printable(each), width)
        more = at + 1 < len(told) or left_out > 0
        if lines is not None and len(found) + len(wrapped) + more > lines:
            room = lines - len(found) - more
            if room <= 0 or found:
                found.append(_cut(f"! and {len(told) - at + left_out:,} more (lexicast status)", width))
                break
            wrapped = [*wrapped[: room - 1], _cut(wrapped[room - 1] + " " + CUT, width)]
        found += wrapped
    else:
        if left_out:
            found.append(f"! and {left_out:,} more")
    return [Text(line, style="bold yellow") for line in found]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        f"! {text}", max(20, width), subsequent_indent="  ", max_lines=WARNING_LINES_MAX, placeholder=f" {CUT}"
    )


def _shared_out(tables: list[Section], lines: int) -> list[tuple[Section, int]]:
    """Each table's rows of those that fit under their headings: in turn one to each that has more. Those without room
    for a row are left out, the last first."""
    while tables and 2 * len(tables) > lines:
        tables = tables[:-1]
    rows = [0] * len(tables)
    room = lines - len(tables)
    while room > 0:
        before = room
        for at, table in enumerate(tables):
            if room > 0 and rows[at] < len(table.rows):
                rows[at] += 1
                room -= 1
        if room == before:
            break
    return list(zip(tables, rows, strict=True))


def _table(table: Section, rows: int, width: int) -> list[Text]:
    """Its heading and so many of its rows."""
    shown = table.rows[:rows]
    title = table.columns[0] if len(shown) == len(table.rows) else f"{table.columns[0]} {rows}/{len(table.rows)}"
    cells = [(title, *table.columns[1:]), *shown]
    widths = [max([cell_len(row[at]) for row in cells]) for at in range(1, len(table.columns))]
    while widths and width - sum(widths) - GAP * len(widths) < NAME_LETTERS_MIN:
        widths.pop()  # a narrow terminal has the first columns
    first = width - sum(widths) - GAP * len(widths)
    lines = []
    for at, row in enumerate(cells):
        rest = [" " * (GAP + own - cell_len(cell)) + cell for cell, own in zip(row[1:], widths, strict=False)]
        style = "bold reverse" if at == 0 else "bold red" if at <= table.wrong else ""
        # Who does not answer has no numbers, and may need their room.
        line = _fitted(row[0], first) + "".join(rest) if any(row[1:]) else _cut(row[0], width)
        lines.append(Text(line, style=style))
    return lines


def _keys(view: View, tables: int, width: int) -> Text:
    orders = [f"[{order[0]} {order}]" if order == view.order else f"{order[0]} {order}" for order in ORDERS]
    words = f"q quit   sort: {'  '.join(orders)}   1-{tables} one table  0 all"
    return Text(_fitted(words, width), style="reverse")


def _cut(text: str, width: int) -> str:
    """At most so wide."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - len(CUT))).rstrip() + CUT[:width]


def _fitted(text: str, width: int) -> str:
    """Exactly so wide."""
    return set_cell_size(_cut(text, width), width)
