"""Sealed records on their way through somebody's hands: what is opened is what was sealed, from its beginning on.

An input is changes, four bytes each: what is done, where (two bytes), and with what; the last byte of all is the size
of the pieces in which the bytes come.
"""

from __future__ import annotations

from typing import Final

from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.sealed_records import Opener, Sealer

from .target import FuzzTarget, must

SECRET: Final = b"s" * 32
# So few that keys change on the way.
RECORDS_A_KEY: Final = 3
PLAIN: Final = tuple(bytes([number]) * (number * 7 % 40 + 1) for number in range(9))
CHANGES_MAX: Final = 8


def _sealed() -> list[bytes]:
    sealer = Sealer(SECRET, RECORDS_A_KEY)
    return [sealer.seal(plain) for plain in PLAIN]


def _changed(records: list[bytes], changes: bytes) -> bytes:
    """What comes of them: records repeated, moved, left out, bits turned, bytes put in and cut off."""
    data = b"".join(records)
    for at in range(0, min(len(changes), 4 * CHANGES_MAX), 4):
        kind, high, low, value = changes[at : at + 4].ljust(4, b"\0")
        place = (high << 8 | low) % (len(data) + 1)
        if kind % 5 == 0:
            data = data[:place] + bytes([data[place] ^ value]) + data[place + 1 :] if place < len(data) else data
        elif kind % 5 == 1:
            data = data[:place] + data[place + value :]
        elif kind % 5 == 2:
            data = data[:place] + bytes([value]) + data[place:]
        elif kind % 5 == 3:
            data += records[value % len(records)]
        else:
            one = records[value % len(records)]
            data = data.replace(one, b"", 1) + one
    return data


def _attempt(data: bytes) -> None:
    records = _sealed()
    sealed, size = _changed(records, data[:-1]), (data[-1:] or b"\0")[0] or 1_000
    opener, opened, noticed = Opener(SECRET, RECORDS_A_KEY), b"", False
    try:
        for at in range(0, len(sealed), size):
            opened += b"".join(opener.open(sealed[at : at + size]))
    except PeerError:
        noticed = True
    sent, whole = b"".join(records), b"".join(PLAIN)
    must(whole.startswith(opened), "something else was opened than was sealed")
    must(opened != whole or sealed.startswith(sent), "a change was not noticed")
    must(sealed != sent or (opened == whole and not noticed), "what nobody has changed does not open")


_SEEDS: Final = (
    b"\0",
    b"\0\0\7\1\5",  # a bit turned
    b"\1\0\20\1\0",  # a byte cut out
    b"\2\0\0\0\3",  # a byte put in
    b"\3\0\0\0\1",  # the first record again
    b"\4\0\0\4\7",  # the fifth at the end
)
TARGET: Final = FuzzTarget(_attempt, _SEEDS, 4 * CHANGES_MAX + 1)
