"""A new family begins with what a sibling has learned, where that pays on its first messages. Pure.

A device type that appears on a new site sends what it sends elsewhere: `plant/7/pump/+` is a sibling of
`plant/3/pump/+`. So its first dictionary need not wait until enough of its own messages have been seen: of the newest
dictionaries of families that differ from it in one level, SIBLINGS_MAX are tried on its first SAMPLES messages, by what
they take and what they cost. What is learned of its own later replaces it by the same rules as any other.

The content is marked with the family's name: its id is then one of this family alone, and links that hold the sibling's
dictionary are told of this one like of any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lexicast.compression.codecs import CODECS, FIELDS, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.fields.codec import PRESET_BYTES_MAX, join_fields_content, split_fields_content
from lexicast.compression.training import mean_bytes

SAMPLES: Final = 8
"""Messages of a new family that siblings are tried on: PREDICT makes a first dictionary of its own after 30."""

SIBLINGS_MAX: Final = 4
HORIZON: Final = 500
"""Messages over which a dictionary's bytes are spread: what PREDICT presumes of a family at least."""

MARGIN_PERCENT: Final = 10.0
"""What it is to save more of the raw bytes than DEFLATE without a dictionary: eight messages are few to go by."""


def siblings_of(family: bytes, dictionaries: Iterable[Dictionary], boundary_levels: int = 0) -> list[Dictionary]:
    """Of the newest dictionaries of all families those of its siblings, at most SIBLINGS_MAX: first those that differ
    in a level before the last literal one (the same type elsewhere), then by age. Who differs in one of the first
    `boundary_levels` is none: nothing of its messages may get there."""
    levels = family.split(b"/")
    places = [(_difference(levels, each.family), each) for each in dictionaries]
    found = [(place, each) for place, each in places if place is not None and place >= boundary_levels]
    last = max([at for at, level in enumerate(levels) if level not in (b"+", b"#")], default=0)
    found.sort(key=lambda one: (one[0] >= last, -one[1].created_us, one[1].id))
    return [dictionary for _, dictionary in found[:SIBLINGS_MAX]]


def _difference(levels: Sequence[bytes], other: bytes) -> int | None:
    """The one level in which another family differs, by a literal; None if it is no sibling."""
    others = other.split(b"/")
    if len(others) != len(levels):
        return None
    places = [at for at, (ours, theirs) in enumerate(zip(levels, others, strict=True)) if ours != theirs]
    if len(places) != 1 or {levels[places[0]], others[places[0]]} & {b"+", b"#"}:
        return None
    return places[0]


def begin_from(
    family: bytes, samples: Sequence[bytes], siblings: Sequence[Dictionary], now_us: int
) -> Dictionary | None:
    """The family's first dictionary out of its siblings', as of now; None where none pays on the samples, or there are
    no samples."""
    samples = [each for each in samples if each]
    if not samples:
        return None
    raw_bytes = sum(map(len, samples)) / len(samples)
    bar = mean_bytes(Deflate(), samples) - raw_bytes * MARGIN_PERCENT / 100
    best: Dictionary | None = None
    for sibling in siblings[:SIBLINGS_MAX]:
        made = Dictionary(family, sibling.codec, _marked(family, sibling), now_us, samples=sibling.samples)
        cost = mean_bytes(made.build(), samples) + made.packed_bytes_about() / HORIZON
        if cost < bar:
            best, bar = made, cost
    return best


def _marked(family: bytes, sibling: Dictionary) -> bytes:
    """The sibling's content with the family's name in front, where it does least harm."""
    if sibling.codec != FIELDS:
        return family + sibling.content[-(CODECS[sibling.codec].content_bytes_max - len(family)) :]
    share, preset, model = split_fields_content(sibling.content)
    room = min(PRESET_BYTES_MAX, CODECS[FIELDS].content_bytes_max - len(model) - 8) - len(family)
    return join_fields_content(share, family + (preset[-room:] if room > 0 else b""), model)
