"""ARCHITECTURE.md says which modules a publication passes, from the socket to the store and out again: it is traced."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..support.mqtt_harness import Raw, close_clients, served, unique

ROOT = Path(__file__).resolve().parents[2]
IN_PACKAGE = re.compile(r"/src/lexicast/(\w+/.+\.py)$")


def told() -> list[str]:
    """The modules of the numbered list, in order."""
    _, _, section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The way of a publication\n")
    section, _, _ = section.partition("\n## ")
    return re.findall(r"(?m)^\d+\. `([\w/]+\.py)`", section)


class Trace:
    """The modules entered while it is on, by any thread that was started under `traced`; each as often as entered."""

    def __init__(self) -> None:
        self.on = False
        self.passed: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call":
            found = IN_PACKAGE.search(frame.f_code.co_filename)
            if found is not None:
                self.passed.append(found[1])


@contextmanager
def traced() -> Iterator[Trace]:
    """Threads started within are watched."""
    trace = Trace()
    threading.setprofile(trace)
    try:
        yield trace
    finally:
        threading.setprofile(None)


def missing(way: list[str], passed: list[str]) -> list[str]:
    """What is left of `way` after what was passed, in order."""
    left = list(way)
    for module in passed:
        if left and left[0] == module:
            del left[0]
    return left


async def test_a_publication_passes_the_modules_that_are_told() -> None:
    topic = unique()
    with traced() as trace, served() as cluster:
        client = await Raw.connect(cluster.port)
        await client.subscribe(topic, qos=1)
        await client.nothing(client, topic)  # what happens only once has happened
        await asyncio.sleep(0.1)
        trace.on = True
        await client.nothing(client, topic)
        trace.on = False
        await close_clients()
    way = told()
    assert len(way) > 20
    left = missing(way, trace.passed)
    assert not left, f"not passed, or not in this order: {left}"


def test_what_is_not_passed_is_found() -> None:
    assert missing(["a", "b", "a"], ["a", "c", "b", "b", "a"]) == []
    assert missing(["a", "b", "c"], ["a", "c", "b"]) == ["c"]
