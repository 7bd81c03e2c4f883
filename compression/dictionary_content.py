"""The content of a dictionary: ways to choose it from sample messages.

| source       | content                                                   | good for                           |
| ------------ | --------------------------------------------------------- | ---------------------------------- |
| `recent`     | the last bytes of the samples                             | large dictionaries                 |
| `covering`   | whole samples, each chosen for what it adds to the others | dictionaries that cross many links |
| `substrings` | ranked common substrings (FemtoZip, thesis 5.3)           | tiny dictionaries; the thesis' way |
| `trained`    | ZDICT's fastCover (zstd alone)                            | zstd where there are few samples   |
| `fields`     | a field model (codec `fields-1` alone: `fields`)          | what machines wrote                |
| `fields-lean`| one that has to pay in a quarter of the messages          | dictionaries that cross many links |
| `fields-and` | a field model, and the last bytes of the samples          | where only some messages are alike |

For zstd, content is *finalized*: entropy tables of the samples go before it (about 110 bytes packed). They matter more
than the content: the same 1 KiB of flights reduced by 72% raw with DEFLATE and by 80% finalized with zstd. Finalizing
is in no release of python-zstandard; PyPI's backports.zstd (the standard library's module from Python 3.14 on) has it.
Decoders need none of this.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import zstandard
from backports import zstd as finalizer

from lexicast.cluster.errors import DictionaryError

from .codecs import CODECS, DEFLATE_PRESET, FIELDS
from .fields.codec import PRESET_BYTES_MAX
from .fields.training import FieldsTraining
from .shared_text import SharedText
from .substrings import SAMPLE_BYTES_MAX, Substring, pack_substrings, ranked

RECENT: Final = "recent"
COVERING: Final = "covering"
SUBSTRINGS: Final = "substrings"
TRAINED: Final = "trained"
FIELDS_ALONE: Final = "fields"
FIELDS_LEAN: Final = "fields-lean"
FIELDS_AND_RECENT: Final = "fields-and"
SOURCES: Final = (RECENT, COVERING, SUBSTRINGS, TRAINED, FIELDS_ALONE, FIELDS_LEAN, FIELDS_AND_RECENT)
FIELD_SOURCES: Final = (FIELDS_ALONE, FIELDS_LEAN, FIELDS_AND_RECENT)

TABLES_BYTES_MAX: Final = 400
"""Room for the entropy tables before finalized content."""

_ZDICT_TRAINED_BYTES_MIN: Final = 64
"""In the first three quarters of the samples, which ZDICT trains on. It checks how long all of them are, and with less
than 8 bytes there it reads beyond them: a crash, not an error (libzstd 1.5.7)."""

# Level 3 saves half the CPU, but chooses tables that cost 2 points on long streams of flights.
_FINALIZING_LEVEL: Final = 13
_FINALIZING_SAMPLES_MAX: Final = 40
_ZSTD_DICTIONARY_MAGIC: Final = bytes.fromhex("37a430ec")
_ZSTD_DICTIONARY_BYTES_MIN: Final = 256

_COVERING_CANDIDATES: Final = 32
_COVERING_JUDGES: Final = 48
_COVERING_ROUNDS_MAX: Final = 6
_COVERING_BYTES_MAX: Final = 16 * 1024
_RANKED_MAX: Final = 2_000


class Material:
    """Samples, and what is found out about them once for all sizes."""

    def __init__(
        self,
        samples: Sequence[bytes],
        *,
        topics: Sequence[bytes] = (),
        substrings_of_bytes_max: int = SAMPLE_BYTES_MAX,
        shared: SharedText | None = None,
    ) -> None:
        """Raises DictionaryError when the samples are empty. `topics`: theirs, none where they are not known.
        Substrings are ranked in the newest so many bytes. `shared`: nothing else enters."""
        if not any(samples):
            raise DictionaryError("there is nothing to train a dictionary on: the samples are empty")
        self._samples = samples
        self._topics = topics
        self._shared = shared
        self._substrings_of_bytes_max = substrings_of_bytes_max

    def content(self, size: int, codec: str, source: str) -> bytes:
        """Content of about `size` bytes (entropy tables not counted; the codec may allow less).

        Raises DictionaryError when the codec or the source is unknown.
        """
        if codec not in CODECS:
            raise DictionaryError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")
        if source not in SOURCES:
            raise DictionaryError(f"unknown source {source!r}: one of {', '.join(SOURCES)}")
        if (codec == FIELDS) != (source in FIELD_SOURCES):
            raise DictionaryError(f"codec {codec!r} has no content from source {source!r}")
        size = min(size, CODECS[codec].content_bytes_max)
        if codec == FIELDS:
            preset = self._beside if source == FIELDS_AND_RECENT else b""
            return self._fields.content(size, preset, lean=source == FIELDS_LEAN)
        if codec == DEFLATE_PRESET:
            return self._raw(size, RECENT if source == TRAINED else source)
        if source == TRAINED and self._shared is None:
            return _trained(self._samples, size)
        size = min(size, CODECS[codec].content_bytes_max - TABLES_BYTES_MAX)
        return _finalized(self._raw(size, source), self._samples)

    @property
    def _beside(self) -> bytes:
        """What is beside a field model."""
        if self._shared is not None:
            return self._shared.packed(PRESET_BYTES_MAX)
        return recent(self._samples, PRESET_BYTES_MAX)

    def _raw(self, size: int, source: str) -> bytes:
        if self._shared is not None:
            content = self._shared.packed(size)
            if not content:
                raise DictionaryError("the publishers have nothing in common that may be told")
            return content
        if source == COVERING:
            content = covering(self._covering, size)
        elif source == SUBSTRINGS:
            content = pack_substrings(self.substrings, size)
        else:
            content = b""
        return content or recent(self._samples, size)

    @cached_property
    def substrings(self) -> list[Substring]:
        """The best common substrings."""
        return ranked(self._samples, _RANKED_MAX, bytes_max=self._substrings_of_bytes_max)

    @cached_property
    def _fields(self) -> FieldsTraining:
        return FieldsTraining(self._samples, self._topics, None if self._shared is None else self._shared.admits)

    @cached_property
    def _covering(self) -> list[bytes]:
        return covering_order(self._samples)


def recent(samples: Sequence[bytes], size: int) -> bytes:
    """The last `size` bytes of the samples joined: the nearest matches cost DEFLATE the fewest bits."""
    kept: list[bytes] = []
    room = size
    for sample in reversed(samples):
        if room <= 0:
            break
        kept.append(sample[-room:])
        room -= len(sample)
    return b"".join(reversed(kept))


def covering_order(samples: Sequence[bytes]) -> list[bytes]:
    """Samples by what they add to those before, greedily: each time the one that makes the others shortest.

    32 candidates are judged on 48 samples, both spread over all of them, 6 are chosen: about 150 ms.
    """
    candidates = [sample for sample in _spread(samples, _COVERING_CANDIDATES) if 0 < len(sample) <= _COVERING_BYTES_MAX]
    judges = _spread(samples, _COVERING_JUDGES)
    chosen: list[bytes] = []
    while candidates and len(chosen) < _COVERING_ROUNDS_MAX:
        before = b"".join(reversed(chosen))
        best = min(candidates, key=lambda sample: _deflated_bytes(judges, sample + before))
        candidates.remove(best)
        chosen.append(best)
    return chosen


def covering(order: Sequence[bytes], size: int) -> bytes:
    """As many of `order` as fit into `size` bytes, the first of them last; of the first as much as fits."""
    content = order[0][-size:] if order else b""
    for sample in order[1:]:
        if len(content) + len(sample) <= size:
            content = sample + content
    return content


def _spread(samples: Sequence[bytes], count: int) -> list[bytes]:
    """`count` of the samples at equal distances, the newest among them, without repeats."""
    step = max(1, len(samples) // count)
    return list(dict.fromkeys(samples[::-1][::step][:count]))


def _deflated_bytes(messages: Sequence[bytes], content: bytes) -> int:
    primed = zlib.compressobj(9, zlib.DEFLATED, -15, 6, zlib.Z_DEFAULT_STRATEGY, content)
    total = 0
    for message in messages:
        compressor = primed.copy()
        total += len(compressor.compress(message)) + len(compressor.flush())
    return total


def _trained(samples: Sequence[bytes], size: int) -> bytes:
    """ZDICT's dictionary; where it finds nothing (few, tiny or equal samples), the samples' last bytes as they are."""
    if sum(map(len, samples[: len(samples) * 3 // 4])) < _ZDICT_TRAINED_BYTES_MIN:
        return _unmarked(recent(samples, size))
    try:
        return zstandard.train_dictionary(max(size, _ZSTD_DICTIONARY_BYTES_MIN), list(samples)).as_bytes()
    except (zstandard.ZstdError, ValueError):
        return _unmarked(recent(samples, size))


def _finalized(content: bytes, samples: Sequence[bytes]) -> bytes:
    """`content` behind the entropy tables of `samples`; as it is where zstd can make none (tiny or equal samples)."""
    content = _unmarked(content)
    chosen = [sample for sample in _spread(samples, _FINALIZING_SAMPLES_MAX) if sample]
    try:
        raw = finalizer.ZstdDict(content, is_raw=True)
        return finalizer.finalize_dict(raw, chosen, len(content) + TABLES_BYTES_MAX, _FINALIZING_LEVEL).dict_content
    except (finalizer.ZstdError, ValueError):
        return content


def _unmarked(content: bytes) -> bytes:
    """Raw content must not look like a trained dictionary."""
    return content[1:] if content.startswith(_ZSTD_DICTIONARY_MAGIC) else content
