"""What a codec costs publishers and subscribers, by the clock of the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lexicast.compression.codecs import Codec


def codec_us(codec: Codec, messages: Sequence[bytes]) -> tuple[float, float]:
    """CPU of publisher and subscriber, microseconds a message."""
    begun = time.process_time()
    packed = [codec.compress(message) for message in messages]
    between = time.process_time()
    for data in packed:
        codec.decompress(data)
    ended = time.process_time()
    count = max(1, len(messages)) / 1e6
    return (between - begun) / count, (ended - between) / count
