"""Training: from samples to a dictionary, and the trial that chooses codec, content and size.

The choice is by measurement on messages that the training has not seen: for each candidate (codec, size, source)

    cost = mean bytes a held-out message (tag included) + |packed dictionary| / horizon + handicap

where `horizon` is the number of messages that the dictionary is expected to serve on a link, and `handicap` the share
of the raw bytes that a codec's CPU has to save at least (`codecs.CodecSpec`): bytes decide, CPU where bytes are near.
Of the sizes every second is tried, upwards until the cost has risen, then the best one's neighbours. The winner is
trained again on all samples, the held-out ones included (but see RETRAINING_HORIZON_MIN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from lexicast.cluster.errors import DictionaryError

from .codecs import CODECS, FIELDS, ZSTD, ZSTD_DENSE, Codec, Deflate
from .dictionary import NEVER_US, Dictionary
from .dictionary_content import FIELDS_ALONE, RECENT, TRAINED, Material
from .dictionary_size import flattening_multiplier
from .maintenance import Candidate, Due
from .shared_text import SharedText

TAG_BYTES: Final = 1

_SOURCES: Final = {ZSTD: TRAINED, FIELDS: FIELDS_ALONE}

RETRAINING_HORIZON_MIN: Final = 500
"""Where a dictionary serves fewer messages a link it is small, and which samples went into it matters more than how
many: the one that won the trial is announced as it is."""


def train(
    samples: Sequence[bytes],
    size: int,
    codec: str,
    source: str | None = None,
    *,
    family: bytes,
    created_us: int = 0,
    expires_us: int = NEVER_US,
    topics: Sequence[bytes] = (),
    shared: SharedText | None = None,
) -> Dictionary:
    """A dictionary of about `size` bytes of content (the codec may allow less) for messages like `samples`.

    `source` is one of `dictionary_content`; None: `trained` for zstd-3, `fields` for fields-1, else `recent`.
    `topics`: of the samples, as far as they are known. Raises DictionaryError when the samples are empty or the codec
    or source is unknown.
    """
    candidate = Candidate(codec, size, source)
    content = _content(Material(samples, topics=topics, shared=shared), candidate)
    publishers = 0 if shared is None else shared.publishers_min
    return Dictionary(family, codec, content, created_us, expires_us, len(samples), publishers)


def _content(material: Material, candidate: Candidate) -> bytes:
    source = candidate.source or _SOURCES.get(candidate.codec, RECENT)
    return material.content(candidate.size, candidate.codec, source)


def mean_bytes(codec: Codec, messages: Sequence[bytes]) -> float:
    """Mean bytes a message as sent, tag included."""
    return TAG_BYTES + sum(len(codec.encode(m)[1]) for m in messages) / len(messages)


class _Trial(NamedTuple):
    cost: float
    candidate: Candidate
    mean: float
    dictionary: Dictionary
    hoped: float
    """The cost should the dictionary serve `Due.hope` times as long as expected."""


def fulfil(due: Due, *, family: bytes, now_us: int) -> Dictionary | None:
    """The dictionary that `due` asks for; None when none pays (see `Due` for the terms). Seconds of CPU at most."""
    if not any(due.training):
        return None
    life = min(NEVER_US, now_us + due.life_us)
    if due.unconditional and len(due.candidates) == 1:
        codec, size, source = due.candidates[0]
        samples = (*due.held_out, *due.training)
        return train(samples, size, codec, source, family=family, created_us=now_us, expires_us=life, shared=due.shared)
    if not due.held_out:
        return None
    trials = _Trials(due, family)
    best = trials.best(float("inf") if due.unconditional else _bar(due))
    if best is None:
        return None
    publishers = 0 if due.shared is None else due.shared.publishers_min
    tried = replace(
        best.dictionary, created_us=now_us, expires_us=life, samples=len(due.training), publishers=publishers
    )
    if due.horizon < RETRAINING_HORIZON_MIN:
        return tried
    codec, size, source = best.candidate
    samples = (*due.training, *due.held_out)
    try:
        return train(
            samples,
            size,
            codec,
            source,
            family=family,
            created_us=now_us,
            expires_us=life,
            topics=due.topics,
            shared=due.shared,
        )
    except DictionaryError:
        if not _may_fail(due, codec):
            raise
        return tried  # all samples make a model that is too large, or have a pattern that is not admitted


class _Trials:
    """The trials of one `Due`."""

    def __init__(self, due: Due, family: bytes) -> None:
        self._due = due
        self._family = family
        self._material = Material(due.training, topics=due.topics[: len(due.training)], shared=due.shared)
        self._raw = _raw_bytes(due)

    def best(self, bar: float) -> _Trial | None:
        """The best trial of those that cost less than `bar`; None where there is none."""
        key = attrgetter("codec", "source")
        groups = [list(group) for _, group in groupby(self._due.candidates, key=key)]
        if self._due.polynomial:
            flat = min(map(self._flattening, groups), key=attrgetter("mean"))
            return flat if flat.cost < bar else None
        paying = [trial for group in groups for trial in self._upwards(group) if trial.cost < bar]
        best: _Trial | None = min(paying, key=attrgetter("hoped"), default=None)
        if best is not None and best.candidate.codec == ZSTD_DENSE:
            best = min(best, self._try(best.candidate._replace(codec=ZSTD)), key=attrgetter("hoped"))
        return best

    def _upwards(self, group: Sequence[Candidate]) -> list[_Trial]:
        """Every second size until the cost has risen, then the neighbours of the best."""
        ordered = sorted(group, key=attrgetter("size"))
        trials: dict[int, _Trial] = {}
        best = 0
        for at in range(0, len(ordered), 2):
            trials[at] = self._try(ordered[at])
            if trials[at].hoped <= trials[best].hoped:
                best = at
            elif at > best + 2:
                break
        for at in (best - 1, best + 1):
            if 0 <= at < len(ordered):
                trials[at] = self._try(ordered[at])
        return list(trials.values())

    def _flattening(self, group: Sequence[Candidate]) -> _Trial:
        """The thesis' choice of size: all are tried, the curve through them decides (`dictionary_size`)."""
        trials = [self._try(candidate) for candidate in group]
        observations = [(t.candidate.size / self._raw, 100 - 100 * t.mean / self._raw) for t in trials]
        return self._try(group[0]._replace(size=int(flattening_multiplier(observations) * self._raw)))

    def _try(self, candidate: Candidate) -> _Trial:
        due = self._due
        try:
            content = _content(self._material, candidate)
        except DictionaryError:
            if not _may_fail(due, candidate.codec):
                raise
            return _Trial(inf, candidate, inf, Dictionary(self._family, candidate.codec, b"-"), inf)
        dictionary = Dictionary(self._family, candidate.codec, content)
        mean = mean_bytes(dictionary.build(), due.held_out)
        spread = dictionary.packed_bytes_about(due.current) / due.horizon
        base = mean + _handicap(due, candidate.codec)
        return _Trial(base + spread, candidate, mean, dictionary, base + spread / due.hope)


def _may_fail(due: Due, codec: str) -> bool:
    """Whether samples may be such that nothing can be made of them this way: then the other candidates are left."""
    return codec == FIELDS or due.shared is not None


def _handicap(due: Due, codec: str) -> float:
    return _raw_bytes(due) * CODECS[codec].handicap_percent / 100


def _raw_bytes(due: Due) -> float:
    return sum(map(len, due.held_out)) / len(due.held_out)


def _bar(due: Due) -> float:
    """What a new dictionary's cost must stay under: today's bytes a message less the margin."""
    margin = _raw_bytes(due) * due.margin_percent / 100
    if due.current is None:
        return mean_bytes(Deflate(), due.held_out) - margin
    return mean_bytes(due.current.build(), due.held_out) + _handicap(due, due.current.codec) - margin
