"""Texts taken apart by a pattern: at its pieces, or into parts of its widths."""

from __future__ import annotations


def split_text(text: bytes, pieces: list[bytes]) -> list[bytes] | None:
    """What stands between the pieces of a pattern, each taken where it comes first; None where one does not come."""
    first, last = pieces[0], pieces[-1]
    if not text.startswith(first) or not text.endswith(last):
        return None
    at, end = len(first), len(text) - len(last)
    parts: list[bytes] = []
    for index in range(1, len(pieces) - 1):
        piece = pieces[index]
        found = text.find(piece, at, end)
        if found < 0:
            return None
        parts.append(text[at:found])
        at = found + len(piece)
    if at > end:
        return None
    parts.append(text[at:end])
    return parts


def cut_text(text: bytes, widths: list[int]) -> list[bytes]:
    """Its parts of these widths."""
    parts: list[bytes] = []
    at = 0
    for width in widths:
        parts.append(text[at : at + width])
        at += width
    return parts
