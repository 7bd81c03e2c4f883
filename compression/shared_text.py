"""What of a family's messages may be told to everybody who has to do with the family: what many publishers have sent.

A dictionary holds pieces of payloads, and a field model texts and values of them. Where not everybody may read all of
a family, as where each device reads its own topics, a dictionary made of what everybody sends tells each device about
the others. So for such families nothing enters that was seen from fewer than `publishers_min` publishers: a piece of
text is *admitted* when so many have sent it, each in one of its messages, and what is shorter than TEXT_BYTES_MIN
bytes, in which nothing can be told, always is.

    bytes     the best common substrings that are admitted, one after the other with a byte between that no message has:
              so no two of them together are what one publisher has sent. No order, nothing of how they belong together.
    fields    rows, words and values that foretell others are admitted or left out; a model with a pattern that is not
              admitted is refused as a whole (`Material`). What numbers are distributed like is no text: it stays.

It keeps out who would put something into others' dictionaries, too, unless it comes as `publishers_min` publishers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from .substrings import ranked

TEXT_BYTES_MIN: Final = 4
"""Shorter ones are in too many messages by chance to tell anything, and a reference to them saves nothing."""

PIECE_BYTES_MAX: Final = 1_024
_RANKED_MAX: Final = 4_000


class Sent(NamedTuple):
    """A message, and who has sent it."""

    publisher: str
    message: bytes


class SharedText:
    """See the module's docstring. Of at most some hundred messages."""

    def __init__(self, sent: Iterable[Sent], publishers_min: int) -> None:
        self.publishers_min = publishers_min
        self._messages: dict[str, list[bytes]] = {}
        for publisher, message in sent:
            self._messages.setdefault(publisher, []).append(message)
        self._known: dict[bytes, bool] = {}

    @property
    def enough(self) -> bool:
        """Whether there are so many publishers at all: else nothing is admitted."""
        return len(self._messages) >= self.publishers_min

    @cached_property
    def separator(self) -> bytes | None:
        """A byte that is in no message; None where there is none."""
        seen = set[int]().union(*[message for messages in self._messages.values() for message in messages])
        return next((bytes((byte,)) for byte in (*range(32), *range(255, 31, -1)) if byte not in seen), None)

    @cached_property
    def _texts(self) -> list[bytes]:
        """What each publisher has sent, whoever sends least first: it rules out most for the least work."""
        joint = b"" if self.separator is None else self.separator
        return sorted([joint.join(messages) for messages in self._messages.values()], key=len)

    def publishers_of(self, text: bytes, most: int) -> int:
        """How many publishers have sent a text within one message, `most` at the most."""
        if self.separator is not None:
            if self.separator in text:
                return 0
            found = 0
            for sent in self._texts:
                found += text in sent
                if found == most:
                    break
            return found
        return min(most, sum(any(text in one for one in messages) for messages in self._messages.values()))

    def admits(self, text: bytes) -> bool:
        """Whether a text may be told."""
        if len(text) < TEXT_BYTES_MIN:
            return True
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self.publishers_of(text, self.publishers_min) >= self.publishers_min
        return known

    @cached_property
    def _pieces(self) -> list[bytes]:
        """The best substrings that are admitted, the best first, none within another."""
        messages = [message for messages in self._messages.values() for message in messages]
        found: list[bytes] = []
        for substring in ranked(messages, _RANKED_MAX):
            piece = substring.content[:PIECE_BYTES_MAX]
            if len(piece) >= TEXT_BYTES_MIN and self.admits(piece) and not any(piece in other for other in found):
                found.append(piece)
        return found

    def packed(self, size: int) -> bytes:
        """Content for dictionaries, at most `size` bytes, the best last; empty where nothing is admitted."""
        separator = self.separator
        if separator is None:
            return b""
        chosen: list[bytes] = []
        room = size
        for piece in self._pieces:
            if len(piece) + 1 <= room:
                chosen.append(piece)
                room -= len(piece) + 1
        return separator.join(reversed(chosen))


def told(content: bytes, sent: Sequence[Sent], publishers_min: int, length: int) -> bytes | None:
    """A text of `length` bytes that is in the content and was sent by somebody, but by fewer than `publishers_min`, if
    there is one."""
    shared = SharedText(sent, publishers_min)
    parts = {content[at : at + length] for at in range(len(content) - length + 1)}
    for text in parts:
        if 0 < shared.publishers_of(text, publishers_min) < publishers_min:
            return text
    return None
