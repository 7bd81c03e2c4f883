"""What a bridge takes of its share."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from lexicast.actors.bridge.dealt_positions import Place
from lexicast.actors.bridge.dealt_records import DealtRecords
from lexicast.actors.bridge.share_feed import BridgeFeed
from lexicast.actors.client.decoder import Decoder
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.actors.client.subscription_feed import TURN_MESSAGES
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock


async def no_dictionary(_: int) -> bytes | None:
    return None


def block(first: int, count: int) -> Block:
    meta = Meta((b"t",), (Run(0, 0, 1, 0, 0, None, -1, count),), (), (), (), ())
    lengths = array("I", [1] * count).tobytes()
    return Block(3, 1, first, first + count - 1, 1, PUBLICATIONS, pack_meta(meta), lengths, b"x" * count)


async def test_who_takes_what_is_at_hand_gives_way_to_others() -> None:
    decoder = Decoder(Dictionaries(SystemClock()), no_dictionary)
    host = SimpleNamespace(decoder=decoder, check_loop=lambda: None, abandon=lambda stream: None)
    feed = BridgeFeed(cast(Any, host), "b", b"#", None)
    feed._stream = 1
    blocks = 6 * TURN_MESSAGES // 256
    feed.deliver([block(256 * number, 256).to_wire() for number in range(blocks)])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    places: list[Place] = []
    while len(places) < 256 * blocks:
        records = DealtRecords(0)
        await feed.take_records(records, 1_024)
        places += records.places
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert places == [(0, 3, offset) for offset in range(256 * blocks)]
    assert turns >= 5
