"""FemtoZip's way as a reference: LZ77 against a dictionary, then static Huffman codes shared in advance (section 2.5).

The thesis measures with FemtoZip: a dictionary of ranked substrings, and Huffman tables built once from samples, so
that a message of 100 bytes need not carry or imply its own. DEFLATE with a preset dictionary uses the fixed tables of
RFC 1951 on such messages, zstd with a finalized dictionary its own static ones. This one is in Python, 100 times slower
than either, and no dictionary names it: it is there to compare with (`bench.compression.driver`), and because it knows
which bytes of the dictionary a message used (table 5.2.1).

Symbols: 256 literals, END, and one a power of two of the match length; another alphabet for powers of two of the
distance. Offsets within a power of two follow as plain bits. Every symbol gets a code, whether the samples had it or
not: every message can be coded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import PAYLOAD_BYTES_MAX

MATCH_MIN: Final = 4
_END: Final = 256
_LENGTHS: Final = 257  # + the power of two
_POWERS: Final = 20
_CANDIDATES: Final = 16


class Match(NamedTuple):
    """A copy of `length` bytes from `distance` bytes back (dictionary and message count as one text)."""

    length: int
    distance: int


Token = int | Match


def tokens(dictionary: bytes, message: bytes) -> Iterator[Token]:
    """The message as literals and longest matches; of equal ones the nearest."""
    text = dictionary + message
    places: dict[bytes, list[int]] = {}
    for at in range(len(dictionary) - MATCH_MIN + 1):
        places.setdefault(text[at : at + MATCH_MIN], []).append(at)
    at = len(dictionary)
    while at < len(text):
        candidates = places.get(text[at : at + MATCH_MIN], ()) if len(text) - at >= MATCH_MIN else ()
        lengths = [(_common(text, place, at), place) for place in candidates[-_CANDIDATES:]]
        length, place = max(lengths, default=(0, 0))
        step = length if length >= MATCH_MIN else 1
        yield Match(length, at - place) if length >= MATCH_MIN else text[at]
        for here in range(at, min(at + step, len(text) - MATCH_MIN + 1)):
            places.setdefault(text[here : here + MATCH_MIN], []).append(here)
        at += step


def _common(text: bytes, first: int, second: int) -> int:
    length = 0
    limit = min(len(text) - second, (1 << _POWERS) - 1)
    while length < limit and text[first + length] == text[second + length]:
        length += 1
    return length


def usage(dictionary: bytes, messages: Sequence[bytes]) -> tuple[float, float]:
    """(percent of the dictionary's bytes that any match used, percent of matched bytes found within the message)."""
    used = bytearray(len(dictionary))
    internal = matched = 0
    for message in messages:
        at = len(dictionary)
        for token in tokens(dictionary, message):
            if isinstance(token, int):
                at += 1
                continue
            begin = at - token.distance
            inside = min(token.length, max(0, len(dictionary) - begin))
            used[begin : begin + inside] = b"\1" * inside
            matched += token.length
            internal += token.length - inside
            at += token.length
    return 100 * sum(used) / max(1, len(dictionary)), 100 * internal / max(1, matched)


class FemtoZip:
    """Compresses with one dictionary and the Huffman tables of the samples it was given."""

    def __init__(self, dictionary: bytes, samples: Iterable[bytes]) -> None:
        self._dictionary = dictionary
        symbols, distances = Counter(range(_LENGTHS + _POWERS)), Counter(range(_POWERS))
        for sample in samples:
            for token in tokens(dictionary, sample):
                symbols[token if isinstance(token, int) else _LENGTHS + token.length.bit_length() - 1] += 100
                if not isinstance(token, int):
                    distances[token.distance.bit_length() - 1] += 100
            symbols[_END] += 100
        self._symbols = _codes(symbols)
        self._distances = _codes(distances)
        self._symbol_of = {code: symbol for symbol, code in self._symbols.items()}
        self._distance_of = {code: power for power, code in self._distances.items()}

    @property
    def table_bytes(self) -> int:
        """What the tables would take to send: half a byte a code length."""
        return (len(self._symbols) + len(self._distances) + 1) // 2

    def compress(self, message: bytes) -> bytes:
        """The message's bits, the last byte filled with zeros."""
        bits: list[str] = []
        for token in tokens(self._dictionary, message):
            if isinstance(token, int):
                bits.append(self._symbols[token])
                continue
            bits += _number(token.length, self._symbols, _LENGTHS)
            bits += _number(token.distance, self._distances, 0)
        text = "".join([*bits, self._symbols[_END]])
        text += "0" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big")

    def decompress(self, data: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The inverse. Raises DictionaryError for what is cut short, refers before the dictionary or is too long."""
        bits = _Bits(data)
        out = bytearray(self._dictionary)
        while (symbol := bits.symbol(self._symbol_of)) != _END:
            if symbol < _END:
                out.append(symbol)
            else:
                length = bits.number(symbol - _LENGTHS)
                distance = bits.number(bits.symbol(self._distance_of))
                if distance > len(out) or len(out) - len(self._dictionary) + length > bytes_max:
                    raise DictionaryError("FemtoZip: a match before the dictionary, or too long a payload")
                for _ in range(length):
                    out.append(out[-distance])
            if len(out) - len(self._dictionary) > bytes_max:
                raise DictionaryError(f"FemtoZip: more than {bytes_max} bytes")
        return bytes(out[len(self._dictionary) :])


class _Bits:
    """Reads codes from bytes."""

    def __init__(self, data: bytes) -> None:
        self._text = "".join(f"{byte:08b}" for byte in data)
        self._at = 0

    def symbol(self, codes: dict[str, int]) -> int:
        """The next symbol."""
        end = self._at + 1
        while self._text[self._at : end] not in codes:
            end += 1
            if end > len(self._text):
                raise DictionaryError("FemtoZip: the payload is cut short")
        begin, self._at = self._at, end
        return codes[self._text[begin:end]]

    def number(self, power: int) -> int:
        """A number of this power of two: its lower bits follow."""
        end = self._at + power
        if end > len(self._text):
            raise DictionaryError("FemtoZip: the payload is cut short")
        begin, self._at = self._at, end
        return (1 << power) + int(self._text[begin:end] or "0", 2)


def _number(number: int, codes: dict[int, str], base: int) -> list[str]:
    power = number.bit_length() - 1
    return [codes[base + power], f"{number - (1 << power):0{power}b}" if power else ""]


def _codes(counts: Counter[int]) -> dict[int, str]:
    """Huffman codes as strings of bits."""
    heap = [(count, symbol, [symbol]) for symbol, count in sorted(counts.items())]
    heapq.heapify(heap)
    codes = dict.fromkeys(counts, "")
    while len(heap) > 1:
        low, high = heapq.heappop(heap), heapq.heappop(heap)
        for bit, (_, _, members) in (("0", low), ("1", high)):
            for symbol in members:
                codes[symbol] = bit + codes[symbol]
        heapq.heappush(heap, (low[0] + high[0], low[1], low[2] + high[2]))
    return codes
