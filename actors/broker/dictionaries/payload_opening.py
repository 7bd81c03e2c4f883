"""The payloads of a block decompressed, as far as there is room for what they become (`compression.opening`).

Conditions ask all of them: of what has no room together they get, a part after the other, as much of each as they look
at (`cluster.content.fields.PAYLOAD_BYTES_MAX`): a longer payload has no fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lexicast.cluster.blocks import FIRST_DICTIONARY, RAW, Meta, Run
from lexicast.cluster.content.fields import PAYLOAD_BYTES_MAX
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.opening import AT_ONCE_BYTES_MAX, Room
from lexicast.compression.wire import Recoder


def raw_run(
    recoder: Recoder, run: Run, dictionaries: tuple[int, ...], stored: list[bytes], room: Room
) -> list[bytes | None]:
    """A run's payloads; None for one whose dictionary is missing, that is damaged, or for which there is no `room`."""
    if run.encoding == RAW:
        return list(stored)
    return decompressed(recoder, run.encoding, _dictionary(run, dictionaries), stored, room)


def decompressed(
    recoder: Recoder, encoding: int, dictionary: int | None, stored: Sequence[bytes | None], room: Room
) -> list[bytes | None]:
    """The same of payloads of one encoding. Those for which there is no room are the last `room.refused`."""
    encoding = min(encoding, FIRST_DICTIONARY)
    if len(stored) > 1 and None not in stored:
        try:
            return [*recoder.all_to_raw(encoding, dictionary, cast("list[bytes]", stored), room)]
        except DictionaryError:
            pass  # some of them, perhaps
    raw: list[bytes | None] = []
    for payload in stored:
        try:
            raw.append(None if payload is None else recoder.to_raw(encoding, dictionary, payload, room))
        except DictionaryError:
            raw.append(None)
    return raw


def opened(
    recoder: Recoder,
    encoding: int,
    dictionary: int | None,
    stored: Sequence[bytes | None],
    bytes_max: int = AT_ONCE_BYTES_MAX,
) -> list[bytes | None]:
    """`decompressed` of the first of them, one or more, that become no more than `bytes_max` together."""
    room = recoder.room(bytes_max)
    found = decompressed(recoder, encoding, dictionary, stored, room)
    return found[: len(found) - room.refused] if room.refused else found


def asked_block(recoder: Recoder, meta: Meta, stored: list[bytes]) -> list[bytes | None]:
    """A block's payloads as conditions ask them, of `stored` ones; None for one that cannot be decompressed."""
    asked: list[bytes | None] = []
    for run in meta.runs:
        some: list[bytes | None] = [*stored[len(asked) : len(asked) + run.count]]
        asked += (
            some if run.encoding == RAW else asked_of(recoder, run.encoding, _dictionary(run, meta.dictionaries), some)
        )
    return asked


def asked_of(recoder: Recoder, encoding: int, dictionary: int | None, stored: list[bytes | None]) -> list[bytes | None]:
    """The same of payloads of one encoding."""
    found = opened(recoder, encoding, dictionary, stored)
    if len(found) == len(stored):
        return found
    asked: list[bytes | None] = []
    while found:
        asked += [None if payload is None else payload[: PAYLOAD_BYTES_MAX + 1] for payload in found]
        found = opened(recoder, encoding, dictionary, stored[len(asked) :])
    return asked


def _dictionary(run: Run, dictionaries: tuple[int, ...]) -> int | None:
    return dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else None
