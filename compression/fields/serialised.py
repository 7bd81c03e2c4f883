"""A field model as bytes: the content of a dictionary of the codec `fields-1`, and what its id is the hash of.

    1 version; varint fields; field (the root); vocabulary: varint words, then its counts, then each word
    field      flags, varint rows, patterns; [number]; [run]; counts; rows; patterns; [rate]; [context]
    text       varint length, bytes
    pattern    varint fields, 0 and its pieces, or 1 and the widths; then its fields
    run        alphabet, varints least, most - least, positions; each: varint letters, each with its count; others: 1
    number     form, places, varint references (each: field, times (zigzag), over), histogram, [stream histogram]
    histogram  varint edges, first edge (zigzag), distances between edges, counts
    context    field + 1, varint contexts; each: text, varint values, counts, the values

Fields are numbered in the order in which they stand, so a reference to a lower number is one to what is known before.

**Hostile models.** Content has at most MODEL_BYTES_MAX bytes and everything in it takes a byte at the least, so
reading takes time and memory in proportion, but for the tables of a run's positions, which are written in three bytes
and have a count for each letter: LETTERS_MAX together. Fields within fields lie at most DEPTH_MAX deep. A field is
visited once a message at the most, a message has a room (`Unfolding.spend`): so no frame takes longer than a message of
that room and all the fields. A model of another version, a count of 0, an alphabet or form that does not exist, an edge
that does not rise, bytes that are left over: DictionaryError.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from lexicast.cluster.errors import DictionaryError

from .alphabets import ALPHABETS
from .entropy import SymbolTable
from .histograms import RANGES_MAX, Histogram
from .model import MESSAGE_BYTES_MAX, RATE_ONE, Context, Field, FieldsModel, NumberField, Pattern, Reference, RunField
from .number_formats import FORMS, PLACES_MAX
from .vocabulary import RUN_BYTES_MAX, SPECIALS, Vocabulary

VERSION: Final = 1
MODEL_BYTES_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 6
FIELDS_MAX: Final = 2_048
FACTOR_MAX: Final = 10**PLACES_MAX
REFERENCES_MAX: Final = 2
LETTERS_MAX: Final = 32 * 1024
"""In all tables of positions: 5 MB. Without a bound a model of 64 KiB, packed some hundred bytes, took 440 MB."""

_NUMBER: Final = 1
_RUN: Final = 2
_REPEATS: Final = 4
_BY_KEY: Final = 8
_KEY: Final = 16
_CONTEXT: Final = 32
_STREAM: Final = 64


def dump_model(model: FieldsModel) -> bytes:
    """The content that `load_model` reads."""
    out = bytearray((VERSION,))
    _put_varint(len(model.fields), out)
    _put_field(model.root, model.rates, out)
    vocabulary = model.vocabulary
    _put_varint(len(vocabulary.words), out)
    _put_counts([step[1] for step in vocabulary.table.steps], out)
    for word in vocabulary.words:
        _put_text(word, out)
    return bytes(out)


def _put_varint(number: int, out: bytearray) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_signed(number: int, out: bytearray) -> None:
    _put_varint(number << 1 if number >= 0 else (-number << 1) - 1, out)


def _put_text(text: bytes, out: bytearray) -> None:
    _put_varint(len(text), out)
    out += text


def _put_counts(counts: Sequence[int], out: bytearray) -> None:
    for count in counts:
        _put_varint(count, out)


def _flags(field: Field) -> int:
    number = field.number
    flags = _NUMBER * (number is not None) | _RUN * (field.run is not None) | _REPEATS * field.repeats
    flags |= _BY_KEY * field.by_key | _KEY * field.is_key | _CONTEXT * (field.context >= 0)
    return flags | _STREAM * (number is not None and number.stream is not None)


def _put_field(field: Field, rates: Sequence[int], out: bytearray) -> None:
    out.append(_flags(field))
    _put_varint(len(field.rows), out)
    _put_varint(len(field.patterns), out)
    if field.number is not None:
        _put_number(field.number, out)
    if field.run is not None:
        out += bytes((field.run.alphabet,))
        _put_varint(field.run.least, out)
        _put_varint(field.run.most - field.run.least, out)
        _put_positions(field.run, out)
    _put_counts([step[1] for step in field.table.steps], out)
    for row in field.rows:
        _put_text(row, out)
    for pattern in field.patterns:
        _put_varint(len(pattern.fields), out)
        out.append(1 if pattern.widths else 0)
        _put_counts(pattern.widths, out)
        for piece in pattern.pieces:
            _put_text(piece, out)
        for inner in pattern.fields:
            _put_field(inner, rates, out)
    if field.repeats:
        out.append(rates[field.id])
    if field.context >= 0:
        _put_contexts(field, out)


def _put_number(number: NumberField, out: bytearray) -> None:
    out += bytes((number.form, number.places))
    _put_varint(len(number.references), out)
    for reference in number.references:
        _put_varint(reference.field, out)
        _put_signed(reference.times, out)
        _put_varint(reference.over, out)
    _put_histogram(number.histogram, out)
    if number.stream is not None:
        _put_histogram(number.stream, out)


def _put_histogram(histogram: Histogram, out: bytearray) -> None:
    edges = histogram.edges
    _put_varint(len(edges), out)
    _put_signed(edges[0], out)
    for lower, upper in itertools.pairwise(edges):
        _put_varint(upper - lower, out)
    _put_counts([step[1] for step in histogram.table.steps], out)


def _put_positions(run: RunField, out: bytearray) -> None:
    _put_varint(len(run.positions), out)
    for table in run.positions:
        counted = [] if table is None else [(at, step[1]) for at, step in enumerate(table.steps) if step[1] > 1]
        _put_varint(len(counted), out)
        for at, count in counted:
            out.append(at)
            _put_varint(count, out)


def _put_contexts(field: Field, out: bytearray) -> None:
    _put_varint(field.context + 1, out)
    _put_varint(len(field.contexts), out)
    for known, context in field.contexts.items():
        _put_text(known, out)
        _put_varint(len(context.values), out)
        _put_counts([step[1] for step in context.table.steps], out)
        for value in context.values:
            _put_text(value, out)


def load_model(content: bytes) -> FieldsModel:
    """The model that `content` says. Raises DictionaryError for everything that is none: see the module's docstring."""
    return _Loading(content).model()


class _Loading:
    """Content that is read from its beginning."""

    def __init__(self, content: bytes) -> None:
        if not 0 < len(content) <= MODEL_BYTES_MAX:
            raise DictionaryError(f"a field model of {len(content)} bytes: 1 to {MODEL_BYTES_MAX} are allowed")
        self._content = content
        self._at = 0
        self._fields: list[Field] = []
        self._rates: list[int] = []
        self._count = 0
        self._letters = 0

    def model(self) -> FieldsModel:
        """All of it."""
        version = self._byte()
        if version != VERSION:
            raise DictionaryError(f"a field model of version {version}, this lexicast reads {VERSION}: update it")
        fields = self._varint(FIELDS_MAX)
        root = self._field(0)
        if self._count != fields:
            raise DictionaryError(f"a field model announces {fields} fields and has {self._count}")
        words = self._size()
        counts = self._counts(SPECIALS + words)
        vocabulary = Vocabulary([self._text() for _ in range(words)], counts)
        if self._at != len(self._content):
            raise DictionaryError(f"{len(self._content) - self._at} bytes follow the end of a field model")
        by_id = sorted(self._fields, key=lambda field: field.id)
        return FieldsModel(root, by_id, self._rates, vocabulary)

    def _field(self, depth: int) -> Field:
        id = self._count
        self._count += 1
        self._rates.append(1)
        if depth > DEPTH_MAX or id >= FIELDS_MAX:
            raise DictionaryError(f"a field model has more than {FIELDS_MAX} fields, or {DEPTH_MAX} within each other")
        flags = self._byte()
        rows, patterns = self._size(), self._size()
        number = self._number(id, flags) if flags & _NUMBER else None
        run = self._run() if flags & _RUN else None
        counts = self._counts(rows + patterns + (number is not None) + (run is not None) + 1)
        told = [self._text() for _ in range(rows)]
        field = Field(id, told, [self._pattern(depth) for _ in range(patterns)], number, run, counts)
        field.repeats, field.by_key, field.is_key = bool(flags & _REPEATS), bool(flags & _BY_KEY), bool(flags & _KEY)
        if field.repeats:
            self._rates[id] = self._rate()
        if flags & _CONTEXT:
            self._contexts(field)
        self._fields.append(field)
        return field

    def _rate(self) -> int:
        rate = self._byte()
        if not 0 < rate < RATE_ONE:
            raise DictionaryError(f"a field model has a rate of {rate}")
        return rate

    def _pattern(self, depth: int) -> Pattern:
        fields = self._size()
        if self._byte():
            widths = [self._varint(MESSAGE_BYTES_MAX) for _ in range(fields)]
            return Pattern([], [self._field(depth + 1) for _ in range(fields)], widths)
        pieces = [self._text() for _ in range(fields + 1)]
        return Pattern(pieces, [self._field(depth + 1) for _ in range(fields)])

    def _number(self, id: int, flags: int) -> NumberField:
        form, places = self._byte(), self._byte()
        if form >= FORMS or places > PLACES_MAX:
            raise DictionaryError(f"a field model has numbers of form {form} with {places} places")
        references = [self._reference(id) for _ in range(self._varint(REFERENCES_MAX))]
        histogram = self._histogram()
        stream = self._histogram() if flags & _STREAM else None
        return NumberField(form, places, histogram, references, stream)

    def _reference(self, id: int) -> Reference:
        field, times, over = self._varint(), self._signed(), self._varint(FACTOR_MAX)
        if field >= id or not 0 < abs(times) <= FACTOR_MAX or not over:
            raise DictionaryError(f"a field model refers to field {field}, times {times}, over {over}")
        return Reference(field, times, over)

    def _histogram(self) -> Histogram:
        count = self._varint(RANGES_MAX + 1)
        edges = [self._signed()]
        for _ in range(count - 1):
            edges.append(edges[-1] + self._varint())
        return Histogram(edges, self._counts(count + 1))

    def _run(self) -> RunField:
        alphabet = self._byte()
        if alphabet >= len(ALPHABETS):
            raise DictionaryError(f"a field model has runs of alphabet {alphabet}")
        least = self._size()
        most = least + self._size()
        return RunField(alphabet, least, most, [self._position(alphabet) for _ in range(self._varint(RUN_BYTES_MAX))])

    def _position(self, alphabet: int) -> SymbolTable | None:
        letters = len(ALPHABETS[alphabet])
        counted = self._varint(letters)
        if not counted:
            return None
        self._letters += letters
        if self._letters > LETTERS_MAX:
            raise DictionaryError(f"a field model has more than {LETTERS_MAX} letters in its tables of positions")
        counts = [1] * letters
        for _ in range(counted):
            letter = self._byte()
            if letter >= letters:
                raise DictionaryError(f"a field model has a letter {letter} in alphabet {alphabet}")
            counts[letter] = self._varint()
        return SymbolTable(counts)

    def _contexts(self, field: Field) -> None:
        field.context = self._varint(field.id) - 1
        if field.context < 0:
            raise DictionaryError("a context of a field model refers to no field")
        for _ in range(self._size()):
            known = self._text()
            values = self._size()
            counts = self._counts(values + 1)
            field.contexts[known] = Context([self._text() for _ in range(values)], counts)

    def _byte(self) -> int:
        if self._at >= len(self._content):
            raise DictionaryError("a field model is cut short")
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self, most: int = 1 << 63) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 63:
                raise DictionaryError("a number of a field model is too long")
        if number > most:
            raise DictionaryError(f"a number of a field model is {number}: at most {most} is allowed")
        return number

    def _size(self) -> int:
        """How many of something that takes a byte at the least."""
        return self._varint(len(self._content) - self._at)

    def _signed(self) -> int:
        number = self._varint()
        return number >> 1 if not number & 1 else -((number + 1) >> 1)

    def _counts(self, count: int) -> list[int]:
        return [self._varint() for _ in range(count)]

    def _text(self) -> bytes:
        length = self._size()
        self._at += length
        return self._content[self._at - length : self._at]
