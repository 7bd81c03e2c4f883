"""Rows of an answer on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from lexicast.raydp_jobs.jobs.sql import show_rows


def test_what_others_wrote_commands_no_terminal() -> None:
    out = io.StringIO()
    show_rows(
        Console(file=out, width=100), ["topic", "payload"], [["t\x1b]0;owned\x07", b"\x1b[2J\xc2\x9b"]], False, False
    )
    assert out.getvalue().replace("\n", "").isprintable()
    assert "t\\x1b]0;owned\\x07" in out.getvalue()
