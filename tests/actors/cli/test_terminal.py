"""What comes from the network and is printed: nothing of it commands a terminal, and files get it as it is."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tty
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.cli.bus import print_messages, shown
from lexicast.actors.cli.common import one_line
from lexicast.actors.status.printable import printable
from lexicast.cluster.errors import UsageError

TITLE = "\x1b]0;owned\x07"
ATTACK = f"a{TITLE}\u009b2J\u202e\r\x7f".encode()


def message(topic: str, payload: bytes) -> Any:
    return SimpleNamespace(
        topic=topic,
        payload=payload,
        position="1:2:3",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        qos=0,
        retain=False,
        publisher="p",
        damaged="",
    )


async def _all(*messages: Any) -> AsyncIterator[Any]:
    for each in messages:
        yield each


@pytest.mark.parametrize(("as_json", "verbose"), [(False, False), (False, True), (True, False)])
def test_a_terminal_gets_escapes_and_a_pipe_the_bytes(
    monkeypatch: pytest.MonkeyPatch, as_json: bool, verbose: bool
) -> None:
    said = message(f"t{TITLE}/b\nforged 1:1:1", ATTACK)
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        with os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            asyncio.run(print_messages(_all(said), None, as_json, verbose))
            got = os.read(master, 100_000).decode()
    finally:
        os.close(master)
    assert got.endswith("\n")
    assert got[:-1].isprintable()
    if as_json:
        assert json.loads(got)["payload"].encode() == ATTACK
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    asyncio.run(print_messages(_all(said), None, as_json, verbose))
    raw = written.getvalue()
    assert ATTACK in raw or as_json
    assert (said.topic.encode() in raw) == verbose


def test_bytes_that_are_no_text_and_lines_that_are() -> None:
    said = message("t", "zwölf\t€\n".encode() + b"\xff\x00 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xa7")
    assert shown(said, False, False).decode() == "zwölf\t€\n\\xff\\x00 👩\u200d🔧\n"


@given(st.text(), st.sampled_from(["", "\n\t"]))
def test_what_is_shown_can_be_seen(text: str, kept: str) -> None:
    found = printable(text, kept)
    assert all(each.isprintable() or each in kept or each in "\u200c\u200d" for each in found)
    assert found == text or not text.isprintable()


def test_errors_quote_others_without_their_commands() -> None:
    assert one_line(UsageError(f"no topic {TITLE}\n here")) == "no topic \\x1b]0;owned\\x07 here"
