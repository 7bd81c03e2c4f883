"""The registry of channels: their definitions, retained in the cluster itself, and how they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import lexicast

from .answers import ROUNDS_FILTER, Round, state_topic, unpack_round
from .definitions import DEFINITIONS_FILTER, Channel, unpack_channel
from .lease import LEASE_TOPIC, NOBODY, Lease, unpack_lease
from .retained import read_retained

GIVE_UP_S: Final = 30.0


class ChannelOverview(NamedTuple):
    """The channels by name, who answers them, and when each was last answered."""

    channels: list[Channel]
    lease: Lease
    rounds: dict[str, Round]


async def retain_definition(connect: Mapping[str, Any], topic: str, packed: bytes) -> None:
    """Keep a definition (`Channel.pack`; empty: none any more) at its `topic`. Raises LexicastError."""
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        await bus.publish(topic, packed, qos=1, retain=True)


async def channel_overview(connect: Mapping[str, Any]) -> ChannelOverview:
    """All that is retained of channels. Raises LexicastError."""
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        found = await read_retained(bus, [DEFINITIONS_FILTER, ROUNDS_FILTER, LEASE_TOPIC])
    lease = unpack_lease(found.pop(LEASE_TOPIC, b"")) or NOBODY
    packed = [payload for topic, payload in found.items() if topic.startswith(DEFINITIONS_FILTER[:-1]) and payload]
    channels = sorted(map(unpack_channel, packed), key=lambda channel: channel.name)
    last = {channel.name: unpack_round(found.get(state_topic(channel.topic), b"")) for channel in channels}
    return ChannelOverview(channels, lease, {name: round for name, round in last.items() if round is not None})
