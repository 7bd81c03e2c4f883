"""The choice of a family's dictionary from its whole history: more messages, candidates and time than online.

The newest HELD_OUT messages are held out; what came before is trained on: every codec, sizes from half a message to 91
messages, contents from windows of the last 200, 1,000 and 5,000 messages. What counts is what the held-out messages
cost on a link, the dictionary included (thesis equation 5.2.1, a link's share, see `compression.maintenance.Due`):

    cost = mean bytes a message as sent, tag included + |packed dictionary| / horizon

The winner is proposed only if it beats what is used now by more than it costs, and is then trained once more with the
held-out messages, which are the newest, in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lexicast.compression.codecs import CODECS, DEFLATE_PRESET, FIELDS, ZSTD, ZSTD_DENSE, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.dictionary_content import COVERING, FIELDS_ALONE, FIELDS_AND_RECENT, RECENT, TRAINED
from lexicast.compression.training import TAG_BYTES, mean_bytes, train

MESSAGES_MIN: Final = 50
"""Fewer say too little about those to come."""
MESSAGES_MAX: Final = 6_000
"""Newest messages of a family that are looked at."""
HELD_OUT_MAX: Final = 500
HELD_OUT_SHARE: Final = 0.3
WINDOWS: Final = (200, 1_000, 5_000)
MULTIPLIERS: Final = (1, 3, 8, 21, 55, 91)
SIZE_MAX: Final = 64 * 1024
FIELDS_WINDOW_MAX: Final = 1_000
"""A field model of more messages takes seconds to learn, and saves little more."""
FIELDS_AND_RECENT_BYTES: Final = 32 * 1024
MARGIN_PERCENT: Final = 0.5
"""Points of the raw bytes by which a new dictionary has to be better, beside what it costs."""


class HistoryCandidate(NamedTuple):
    """A way to make a dictionary; `window`: of how many of the last messages."""

    codec: str
    size: int
    source: str
    window: int


class Choice(NamedTuple):
    """What came out for one family. Bytes are means a held-out message; reductions in percent, dictionary included."""

    family: bytes
    messages: int
    raw: float
    current: float
    proposed: float
    candidate: HistoryCandidate | None
    packed_bytes: int
    horizon: int
    reason: str
    dictionary: Dictionary | None

    @property
    def current_percent(self) -> float:
        """The reduction with what is used now."""
        return 100 - 100 * self.current / self.raw if self.raw else 0.0

    @property
    def proposed_percent(self) -> float:
        """The reduction with the best candidate."""
        return 100 - 100 * self.proposed / self.raw if self.raw else 0.0


def horizon_of(seen: int, publishers: int, subscribers: int) -> int:
    """For how many messages on one link a dictionary is expected to serve: as many as the history has, a link's share.

    A dictionary crosses P + S links where a message crosses 1 + S.
    """
    return max(1, seen * (1 + subscribers) // (publishers + subscribers))


def choose(
    family: bytes,
    messages: Sequence[bytes],
    seen: int,
    current: Dictionary | None,
    *,
    publishers: int = 1,
    subscribers: int = 1,
    now_us: int = 0,
    size_max: int = SIZE_MAX,
) -> Choice:
    """The best dictionary for `messages` (oldest first, the newest of `seen`); `dictionary` is None if none pays."""
    horizon = horizon_of(seen, publishers, subscribers)
    kept = [message for message in messages[-MESSAGES_MAX:] if message]
    if len(kept) < MESSAGES_MIN:
        return Choice(family, seen, 0.0, 0.0, 0.0, None, 0, horizon, f"only {len(kept)} messages", None)
    held = min(HELD_OUT_MAX, int(len(kept) * HELD_OUT_SHARE))
    training, held_out = kept[:-held], kept[-held:]
    raw = sum(map(len, held_out)) / held
    now = mean_bytes(current.build() if current else Deflate(), held_out)
    trials = [_trial(family, training, held_out, candidate, horizon) for candidate in candidates(training, size_max)]
    cost, mean, packed, candidate = min(trials)
    choice = Choice(family, seen, raw, now, mean + packed / horizon, candidate, packed, horizon, "", None)
    gain = 100 * (now - cost) / raw
    if gain < MARGIN_PERCENT:
        return choice._replace(reason=f"{gain:+.1f} points: not worth its {packed:,} bytes")
    made = _made(family, kept, candidate, now_us)
    return choice._replace(reason=f"{gain:+.1f} points", dictionary=made)


def candidates(training: Sequence[bytes], size_max: int) -> Iterator[HistoryCandidate]:
    """Every way that is tried."""
    mean = sum(map(len, training)) / len(training)
    windows = [window for window in WINDOWS if window < len(training)] + [min(len(training), WINDOWS[-1])]
    for codec, source in ((ZSTD_DENSE, RECENT), (DEFLATE_PRESET, RECENT), (DEFLATE_PRESET, COVERING), (ZSTD, TRAINED)):
        limit = min(size_max, CODECS[codec].content_bytes_max)
        sizes = sorted({min(limit, max(256, int(step * mean))) for step in MULTIPLIERS})
        # of recent messages the last ones are taken, whatever the window
        for window in windows[-1:] if source == RECENT else sorted(set(windows)):
            yield from (HistoryCandidate(codec, size, source, window) for size in sizes)
    if size_max >= CODECS[FIELDS].content_bytes_max:
        for window in sorted({min(window, FIELDS_WINDOW_MAX) for window in windows}):
            yield HistoryCandidate(FIELDS, size_max, FIELDS_ALONE, window)
            yield HistoryCandidate(FIELDS, FIELDS_AND_RECENT_BYTES, FIELDS_AND_RECENT, window)


def _trial(
    family: bytes, training: Sequence[bytes], held_out: Sequence[bytes], candidate: HistoryCandidate, horizon: int
) -> tuple[float, float, int, HistoryCandidate]:
    """(cost with the codec's handicap, mean bytes, packed bytes, the candidate)."""
    made = _made(family, training, candidate, 0)
    mean, packed = mean_bytes(made.build(), held_out), len(made.pack())
    raw = TAG_BYTES + sum(map(len, held_out)) / len(held_out)
    return mean + packed / horizon + raw * CODECS[candidate.codec].handicap_percent / 100, mean, packed, candidate


def _made(family: bytes, messages: Sequence[bytes], candidate: HistoryCandidate, now_us: int) -> Dictionary:
    window = messages[-candidate.window :]
    return train(window, candidate.size, candidate.codec, candidate.source, family=family, created_us=now_us)
