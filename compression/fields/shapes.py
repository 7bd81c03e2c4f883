"""Patterns found in texts: what stands the same in many of them, with gaps between.

A text is outlined: what is punctuation (characters that are neither letter nor digit, names of JSON members with quotes
and colon, the T and Z of times) and what stands between. Texts with the same punctuation are one shape. Frequent shapes
become patterns as they are; what is left is merged, the longest common subsequence of two shapes, as long as they
agree in most of it: so an optional part, or words of a sentence, become one gap. In a gap that is the same everywhere
stands a word of the format, unless it is a value by its place (after a colon, in quotes) or a number: these may change.

(LCS merging as Spell does for logs: Du and Li 2016.)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from .text_parts import split_text

PATTERNS_MAX: Final = 24
_PUNCTUATION_MAX: Final = 400
_MERGED_MAX: Final = 60
_COMPARED_MAX: Final = 32_000_000
"""Pairs of signs that are compared to merge shapes: 3 s at the most. Shapes that are all different, of 400 signs each,
took half a minute."""
_ALIKE: Final = 0.6

_OUTLINE: Final = re.compile(
    rb"""
    (?P<name>"[^"\\]{1,64}"\s*:\s*)
    | "(?P<string>(?:[^"\\]|\\.)*)"
    | (?P<mark>(?<=\d\d)T(?=\d\d:) | (?<=\d)Z(?![A-Za-z0-9_]))
    | (?P<number>(?<![A-Za-z0-9_)])-?(?<!\d\.)\d+\.\d+(?:[eE][+-]?\d+)?(?![A-Za-z0-9_.])
        | (?:(?<![A-Za-z0-9_)])-)?\d+(?![A-Za-z0-9_])
        | \d+(?=T\d\d:|Z(?![A-Za-z0-9_])))
    | (?P<word>[A-Za-z0-9_\x80-\xff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class FoundPattern(NamedTuple):
    """A pattern, and which of the texts are of it, each with what stands in its gaps."""

    pieces: list[bytes]
    members: list[int]
    parts: list[list[bytes]]


def outline_of(text: bytes) -> tuple[bytes, ...] | None:
    """Its punctuation; None where it is too much for a pattern."""
    signs: list[bytes] = []
    for found in _OUTLINE.finditer(text):
        kind = found.lastgroup
        if kind == "string":
            signs += (b'"', b'"')
        elif kind not in ("number", "word"):
            signs.append(found[0])
        if len(signs) > _PUNCTUATION_MAX:
            return None
    return tuple(signs)


def find_patterns(texts: Sequence[bytes], least: int) -> list[FoundPattern]:
    """The patterns of `texts`, the most specific first, each of `least` texts or more, with the texts that are theirs.

    A text belongs to the first one that it fits, as when it is encoded.
    """
    shapes: defaultdict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for at, text in enumerate(texts):
        shape = outline_of(text)
        if shape:
            shapes[shape].append(at)
    ordered = sorted(shapes.items(), key=lambda item: -len(item[1]))
    frequent = [(shape, members) for shape, members in ordered if len(members) >= least][:PATTERNS_MAX]
    found = [_pieces(shape, [texts[at] for at in members]) for shape, members in frequent]
    rare = ordered[len(frequent) :]
    found += [_pieces(shape, [texts[at] for at in members]) for shape, members in _merged(rare)]
    return _assigned(texts, [pieces for pieces in found if pieces is not None], least)


def _merged(rare: Sequence[tuple[tuple[bytes, ...], list[int]]]) -> list[tuple[tuple[bytes, ...], list[int]]]:
    """Shapes that are each the common subsequence of several."""
    merged: list[tuple[tuple[bytes, ...], list[int]]] = []
    left = _COMPARED_MAX
    for shape, members in rare[:_MERGED_MAX]:
        best = -1
        common: tuple[bytes, ...] = ()
        for at, (other, _) in enumerate(merged):
            if 2 * sum((Counter(shape) & Counter(other)).values()) < _ALIKE * (len(shape) + len(other)):
                continue
            left -= len(shape) * len(other)
            if left < 0:
                return merged
            shared = _common(shape, other)
            if 2 * len(shared) >= _ALIKE * (len(shape) + len(other)) and len(shared) > len(common):
                best, common = at, shared
        if best < 0:
            merged.append((shape, list(members)))
        else:
            merged[best] = (common, merged[best][1] + members)
    return merged


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[bytes, ...]:
    """Their longest common subsequence."""
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    end = 0
    while end < min(len(one), len(other)) - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    head, tail = tuple(one[:begin]), tuple(one[len(one) - end :])
    return head + _common_middle(one[begin : len(one) - end], other[begin : len(other) - end]) + tail


def _common_middle(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[bytes, ...]:
    if not one or not other:
        return ()
    rows = [[0] * (len(other) + 1)]
    for sign in one:
        above = rows[-1]
        row = [0]
        for at, each in enumerate(other):
            row.append(above[at] + 1 if sign == each else max(above[at + 1], row[at]))
        rows.append(row)
    out: list[bytes] = []
    i, j = len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            out.append(one[i - 1])
            i, j = i - 1, j - 1
        elif rows[i - 1][j] >= rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return tuple(reversed(out))


def _pieces(shape: tuple[bytes, ...], texts: Sequence[bytes]) -> list[bytes] | None:
    """The pieces of the pattern of a shape: gaps that are the same in all texts are filled."""
    loose = [b"", *shape, b""]
    parts = [split for text in texts if (split := split_text(text, loose)) is not None]
    if not parts:
        return None
    pieces = [b""]
    for at, column in enumerate(zip(*parts, strict=True)):
        first = column[0]
        # in a gap at either end nothing stands before or behind
        fixed = all(value == first for value in column) and not (first and _is_value(first, loose[at]))
        if fixed:
            pieces[-1] += first + loose[at + 1]
        else:
            pieces.append(loose[at + 1])
    return pieces if len(pieces) > 1 else None


def _is_value(text: bytes, before: bytes) -> bool:
    """Whether it may change though it never did: a number, or what stands in quotes or after a colon."""
    return text[-1:].isdigit() or before.rstrip()[-1:] in (b":", b'"')


def _assigned(texts: Sequence[bytes], patterns: list[list[bytes]], least: int) -> list[FoundPattern]:
    """Those patterns that have `least` texts or more, the ones with most text first."""
    patterns = sorted(patterns, key=lambda pieces: -sum(map(len, pieces)))
    while True:
        found = [FoundPattern(pieces, [], []) for pieces in patterns]
        for at, text in enumerate(texts):
            for pattern in found:
                parts = split_text(text, pattern.pieces)
                if parts is not None:
                    pattern.members.append(at)
                    pattern.parts.append(parts)
                    break
        kept = [pattern for pattern in found if len(pattern.members) >= least]
        if len(kept) == len(found):
            return found[:PATTERNS_MAX]
        patterns = [pattern.pieces for pattern in kept]
