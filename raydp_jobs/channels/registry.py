"""The registry of channels: their definitions, retained in the cluster itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import lexicast

from .definitions import DEFINITIONS_FILTER, Channel, unpack_channel

GIVE_UP_S: Final = 30.0
RETAINED_S: Final = 1.0


async def retain_definition(connect: Mapping[str, Any], topic: str, packed: bytes) -> None:
    """Keep a definition (`Channel.pack`; empty: none any more) at its `topic`. Raises LexicastError."""
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        await bus.publish(topic, packed, qos=1, retain=True)


async def defined_channels(connect: Mapping[str, Any]) -> list[Channel]:
    """The channels that are retained, by name; the brokers send them at once, and nothing says that these are all.

    Raises LexicastError.
    """
    found = []
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus, bus.subscribe(DEFINITIONS_FILTER) as messages:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(RETAINED_S):
                    message = await anext(aiter(messages))
                if message.payload:
                    found.append(unpack_channel(message.payload))
    return sorted(found, key=lambda channel: channel.name)
