"""Retained publications on their way to a connection: whatever goes wrong, the client does not wait for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.mqtt import retained_sending
from lexicast.actors.mqtt.retained_sending import FAULTS_MAX, RetainedSending
from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import UnavailableError

from ...support.harness import eventually

FILTER = b"a/#"


class Pages:
    """A feed of these pages; an exception is raised each time that it is asked for, `times` times."""

    def __init__(self, *pages: str | Exception, times: int = 1) -> None:
        self.left = list(pages)
        self.times = times
        self.asked = 0

    @property
    def done(self) -> bool:
        return not self.left

    async def page(self) -> list[tuple[bytes, Block]]:
        self.asked += 1
        first = self.left[0]
        if isinstance(first, Exception):
            self.times -= 1
            if not self.times:
                self.left.pop(0)
            raise first
        return [(FILTER, cast(Any, self.left.pop(0)))]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> tuple[RetainedSending, list[Any]]:
    """One whose client takes everything, and what it was sent."""
    monkeypatch.setattr(retained_sending, "RETRY_S", 0.0)
    sent: list[Any] = []

    def send(block: Block, grant: Grant) -> bool:
        sent.append(block)
        return True

    made = RetainedSending(send, lambda: True, lambda: cast(None, made.send()))
    return made, sent


@pytest.mark.parametrize("error", [UnavailableError("not now"), ValueError("a fault")])
async def test_a_page_that_cannot_be_had_is_asked_for_again(
    sending: tuple[RetainedSending, list[Any]], error: Exception
) -> None:
    made, sent = sending
    made.add(Pages("first", error, "second"), {FILTER: Grant()})
    made.add(Pages("third"), {FILTER: Grant()})
    await eventually(lambda: made.done)
    assert sent == ["first", "second", "third"]


async def test_what_fails_by_a_fault_each_time_is_given_up_and_what_stands_behind_it_is_sent(
    sending: tuple[RetainedSending, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    made, sent = sending
    broken = Pages("first", ValueError("a fault"), "never", times=1_000)
    made.add(broken, {FILTER: Grant()})
    made.add(Pages("second"), {FILTER: Grant()})
    await eventually(lambda: made.done)
    assert sent == ["first", "second"]
    assert broken.asked == 1 + FAULTS_MAX
    assert "are given up" in caplog.text


async def test_what_the_coordinator_cannot_give_is_asked_for_as_long_as_it_takes(
    sending: tuple[RetainedSending, list[Any]],
) -> None:
    made, sent = sending
    made.add(Pages(UnavailableError("not now"), "first", times=10 * FAULTS_MAX), {FILTER: Grant()})
    await eventually(lambda: made.done)
    assert sent == ["first"]
