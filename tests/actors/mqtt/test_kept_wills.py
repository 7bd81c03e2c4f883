"""Wills that nobody but their broker has: published again while they are refused, given up after so many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.mqtt import wills as wills_module
from lexicast.actors.mqtt.codec.packets import Will
from lexicast.actors.mqtt.session_state import will_bytes
from lexicast.actors.mqtt.wills import WillPublisher
from lexicast.cluster.errors import UnavailableError

WILL = Will(b"w", b"gone", 1)


class FullDisk:
    """Refuses publications so often, then takes them."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked = 0

    def publish(
        self, topic: bytes, flags: int, payloads: list[bytes], origin: str, done: Callable[[Any], None], **_: Any
    ) -> None:
        self.asked += 1
        done("the disk is full" if self.asked <= self.refusals else ((1, 1, 1),))


@pytest.mark.parametrize(("refusals", "asked"), [(0, 1), (3, 4), (100, 5)])
async def test_a_will_is_published_until_it_is_taken_or_given_up(
    monkeypatch: pytest.MonkeyPatch, refusals: int, asked: int
) -> None:
    monkeypatch.setattr(wills_module, "AGAIN_FIRST_S", 0.0)
    monkeypatch.setattr(wills_module, "TRIES", 5)
    disk = FullDisk(refusals)
    publisher = WillPublisher(cast(Coordinators, disk), Rights())
    publisher.publish_kept("client", WILL, "")
    for _ in range(50):
        await asyncio.sleep(0)
    assert disk.asked == asked
    publisher.close()


async def test_not_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills_module, "KEPT_MAX", 2)
    disk = FullDisk(10**9)
    publisher = WillPublisher(cast(Coordinators, disk), Rights())
    for _ in range(5):
        publisher.publish_kept("client", WILL, "")
    for _ in range(5):
        await asyncio.sleep(0)
    assert disk.asked == 5
    publisher.close()


async def test_a_broker_that_has_no_rules_yet_publishes_no_wills_for_homes() -> None:
    """It is linked, and asked, before it has them: what its user may not publish any more would be published."""
    disk, rights = FullDisk(0), Rights(has_rules=True)
    publisher = WillPublisher(cast(Coordinators, disk), rights)
    data = will_bytes(WILL)
    with pytest.raises(UnavailableError, match="not known"):
        await publisher.publish_for_home("client", data, "ada")
    rights.update("user ada\ntopic write other", 1)
    await publisher.publish_for_home("client", data, "ada")
    assert disk.asked == 0
    rights.update("user ada\ntopic write w", 2)
    await publisher.publish_for_home("client", data, "ada")
    assert disk.asked == 1
