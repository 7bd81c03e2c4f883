"""Text: words that the whole model shares, and runs of characters for what is no word of it.

    text   tokens (a word or run of letters and digits, with the blank before it, or one other character), then END
    token  a word of the vocabulary; or the alphabet of its run, whether a blank stands before it, its length, the run

Each token but END adds a byte at the least to the message, whose room bounds the work (`Unfolding.spend`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lexicast.cluster.errors import DictionaryError

from .alphabets import ALPHABETS, alphabet_of, run_number, run_of, run_slots
from .entropy import Step, SymbolTable, Unfolding

WORD_BYTES_MAX: Final = 255
RUN_BYTES_MAX: Final = 256

_TOKENS: Final = re.compile(rb" ?[A-Za-z0-9]{1,256}|[\x80-\xff]{1,256}|.", re.DOTALL)
_SHORT: Final = 15
_END: Final = 0
SPECIALS: Final = 1 + 2 * len(ALPHABETS)
"""END, and each alphabet without and with a blank: the first symbols of a vocabulary."""


def text_tokens(text: bytes) -> list[bytes]:
    """Its tokens; joined they are the text."""
    return _TOKENS.findall(text)


class Vocabulary:
    """Words with their counts, after those of the specials."""

    __slots__ = ("_steps", "table", "words")

    def __init__(self, words: Sequence[bytes], counts: Sequence[int]) -> None:
        """Raises DictionaryError when the counts are no table for the words, or a word is empty or too long."""
        if len(counts) != SPECIALS + len(words):
            raise DictionaryError("a field model's vocabulary has words without counts")
        for word in words:
            if not 0 < len(word) <= WORD_BYTES_MAX:
                raise DictionaryError(f"a word of a field model's vocabulary has {len(word)} bytes")
        self.words = list(words)
        self.table = SymbolTable(counts)
        self._steps = dict(zip(words, self.table.steps[SPECIALS:], strict=True))

    def put(self, text: bytes, steps: list[Step]) -> None:
        """Append the steps of a text."""
        known = self._steps
        for token in text_tokens(text):
            step = known.get(token)
            if step is not None:
                steps.append(step)
            else:
                self._put_run(token, steps)
        steps.append(self.table.steps[_END])

    def _put_run(self, token: bytes, steps: list[Step]) -> None:
        blank = token[0] == 32 and len(token) > 1
        run = token[1:] if blank else token
        alphabet = alphabet_of(run)
        steps.append(self.table.steps[1 + 2 * alphabet + (1 if blank else 0)])
        put_run(run, alphabet, steps)

    def take(self, unfolding: Unfolding) -> bytes:
        """The text that the next steps say. Raises DictionaryError when there is no room for it."""
        tokens: list[bytes] = []
        while True:
            symbol = unfolding.symbol(self.table)
            if symbol == _END:
                return b"".join(tokens)
            token = self.words[symbol - SPECIALS] if symbol >= SPECIALS else self._take_run(unfolding, symbol)
            unfolding.spend(len(token))
            tokens.append(token)

    def _take_run(self, unfolding: Unfolding, symbol: int) -> bytes:
        alphabet, blank = divmod(symbol - 1, 2)
        run = take_run(alphabet, unfolding)
        return b" " + run if blank else run


def put_run(run: bytes, alphabet: int, steps: list[Step]) -> None:
    """Append length and characters of a run of 1 to RUN_BYTES_MAX bytes of an alphabet."""
    length = len(run)
    if length <= _SHORT:
        steps.append((length - 1, 1, _SHORT + 1))
    else:
        steps.append((_SHORT, 1, _SHORT + 1))
        steps.append((length - 1, 1, RUN_BYTES_MAX))
    steps.append((run_number(run, alphabet), 1, run_slots(alphabet, length)))


def take_run(alphabet: int, unfolding: Unfolding) -> bytes:
    """The inverse of `put_run`."""
    length = 1 + unfolding.uniform(_SHORT + 1)
    if length > _SHORT:
        length = 1 + unfolding.uniform(RUN_BYTES_MAX)
    return run_of(unfolding.uniform(run_slots(alphabet, length)), alphabet, length)
