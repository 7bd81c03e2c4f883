"""The place of a share in one topic group: what lies behind it, as it is written.

    floor   everything before it is done
    read    everything before it has been looked at: it is done, or among `open`
    open    what is not done, in ascending order

Written: msgpack of (FORMAT, floor, read, the open offsets as gaps and lengths of their ranges). Where these are too
many only the floor is written: then what was done beyond it is dealt again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgpack

from ..errors import PeerError

FORMAT: Final = 1
RANGES_MAX: Final = 1_000
OPEN_MAX: Final = 1 << 20
_OFFSET_MAX: Final = 2**63 - 1


class SharePlace(NamedTuple):
    """See the module's docstring."""

    floor: int
    read: int
    open: tuple[int, ...] = ()


def pack_place(place: SharePlace) -> bytes:
    """A place as bytes."""
    ranges = _ranges(place.floor, place.open)
    fields: tuple[Any, ...] = (FORMAT, place.floor, place.read, ranges)
    if len(ranges) > 2 * RANGES_MAX:
        fields = (FORMAT, place.floor, place.floor, ())
    packed: bytes = msgpack.packb(fields)
    return packed


def _ranges(floor: int, offsets: Iterable[int]) -> list[int]:
    """(gap, length) of each range, one after the other."""
    found: list[int] = []
    end = floor
    for offset in offsets:
        if found and offset == end:
            found[-1] += 1
        else:
            found += (offset - end, 1)
        end = offset + 1
    return found


def unpack_place(data: bytes) -> SharePlace:
    """The inverse. Raises PeerError when the bytes are no place."""
    try:
        version, floor, read, ranges = msgpack.unpackb(data, use_list=False)
        if version != FORMAT:
            raise ValueError(f"format {version!r}, not {FORMAT}")
        numbers = (floor, read, *ranges)
        if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) > _OFFSET_MAX or len(ranges) % 2:
            raise ValueError(f"something else than numbers of 0 to {_OFFSET_MAX}")
        if sum(ranges[1::2]) > OPEN_MAX:
            raise ValueError(f"more than {OPEN_MAX} offsets are open")
        offsets: list[int] = []
        at = floor
        for gap, count in zip(ranges[::2], ranges[1::2], strict=True):
            offsets += range(at + gap, at + gap + count)
            at += gap + count
        if at > read:
            raise ValueError("an open offset lies beyond what was read")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PeerError(f"a share's place cannot be read: {error}") from None
    return SharePlace(floor, read, tuple(offsets))
