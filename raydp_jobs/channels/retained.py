"""Everything that is retained below some filters, and that it is everything."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import lexicast

MARK_PREFIX: Final = "$channel-runner/mark/"
MARK_EXPIRY_S: Final = 60.0


async def read_retained(client: lexicast.Client, filters: Sequence[str]) -> dict[str, bytes]:
    """Topic -> payload of what is retained, and of what is published meanwhile (empty: retained no more).

    Raises LexicastError.
    """
    mark = MARK_PREFIX + secrets.token_hex(8)
    found: dict[str, bytes] = {}
    async with client.subscribe([*filters, mark]) as messages:
        # What is retained comes before what is published afterwards: this mark ends it.
        await client.publish(mark, b"", expiry_s=MARK_EXPIRY_S)
        async for message in messages:
            if message.topic == mark:
                break
            found[message.topic] = message.payload
    return found
