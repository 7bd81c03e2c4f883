"""Training: from samples to a dictionary, and the trial that chooses codec and size.

The choice is by measurement on messages that the training has not seen: for each candidate (codec, size)

    cost = mean bytes a held-out message (tag included) + |packed dictionary| / horizon

where `horizon` is the number of messages that the dictionary is expected to serve on a link. The winner is trained
again on all samples, the held-out ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import zstandard

from lexicast.cluster.errors import DictionaryError

from .codecs import CODECS, ZSTD, Codec, Deflate
from .dictionary import NEVER_US, Dictionary
from .maintenance import Candidate, Due

TAG_BYTES: Final = 1

_ZSTD_DICTIONARY_MAGIC: Final = bytes.fromhex("37a430ec")
_ZSTD_DICTIONARY_BYTES_MIN: Final = 256


def train(
    samples: Sequence[bytes],
    size: int,
    codec: str,
    *,
    family: bytes,
    created_us: int = 0,
    expires_us: int = NEVER_US,
) -> Dictionary:
    """A dictionary of at most `size` bytes of content (the codec may allow less) for messages like `samples`.

    Raises DictionaryError when the samples are empty or the codec is unknown.
    """
    if codec not in CODECS:
        raise DictionaryError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")
    size = min(size, CODECS[codec].content_bytes_max)
    content = _zstd_content(samples, size) if codec == ZSTD else _last_bytes(samples, size)
    return Dictionary(family, codec, content, created_us, expires_us, len(samples))


def _zstd_content(samples: Sequence[bytes], size: int) -> bytes:
    """ZDICT's dictionary; where it finds nothing (few, tiny or equal samples), the samples' last bytes as they are."""
    try:
        return zstandard.train_dictionary(max(size, _ZSTD_DICTIONARY_BYTES_MIN), list(samples)).as_bytes()
    except (zstandard.ZstdError, ValueError):
        content = _last_bytes(samples, size)
        # raw content must not look like a trained dictionary
        return content[1:] if content.startswith(_ZSTD_DICTIONARY_MAGIC) else content


def _last_bytes(samples: Sequence[bytes], size: int) -> bytes:
    """The last `size` bytes of the samples joined: the nearest matches cost DEFLATE the fewest bits."""
    kept: list[bytes] = []
    room = size
    for sample in reversed(samples):
        if room <= 0:
            break
        kept.append(sample[-room:])
        room -= len(sample)
    content = b"".join(reversed(kept))
    if not content:
        raise DictionaryError("there is nothing to train a dictionary on: the samples are empty")
    return content


def mean_bytes(codec: Codec, messages: Sequence[bytes]) -> float:
    """Mean bytes a message as sent, tag included."""
    return TAG_BYTES + sum(len(codec.encode(m)[1]) for m in messages) / len(messages)


class _Trial(NamedTuple):
    cost: float
    candidate: Candidate


def fulfil(due: Due, *, family: bytes, now_us: int) -> Dictionary | None:
    """The dictionary that `due` asks for; None when none pays (see `Due` for the terms). Seconds of CPU at most."""
    if not due.training or not due.held_out or not any(due.training):
        return None
    trials = [_Trial(_cost(due, candidate, family), candidate) for candidate in due.candidates]
    best = min(trials)
    if best.cost >= _bar(due):
        return None
    return train(
        (*due.training, *due.held_out),
        best.candidate.size,
        best.candidate.codec,
        family=family,
        created_us=now_us,
        expires_us=min(NEVER_US, now_us + due.life_us),
    )


def _cost(due: Due, candidate: Candidate, family: bytes) -> float:
    dictionary = train(due.training, candidate.size, candidate.codec, family=family)
    return mean_bytes(dictionary.build(), due.held_out) + len(dictionary.pack()) / due.horizon


def _bar(due: Due) -> float:
    """What a new dictionary's cost must stay under: today's bytes a message less the margin."""
    now = mean_bytes(due.current.build() if due.current else Deflate(), due.held_out)
    raw = TAG_BYTES + sum(map(len, due.held_out)) / len(due.held_out)
    return now - raw * due.margin_percent / 100
