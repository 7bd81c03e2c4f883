"""The model of a family: fields within patterns within fields, and how a value becomes steps and comes back.

    message   is the value of the root field
    field     a value is one of its rows (told whole), or a text of one of its patterns, or a number, or a run of
              characters of one alphabet, or any text; which one it is, is one symbol of the field's table
    pattern   pieces of text that stand between fields: `{"delay":` field `,"origin":"` field `"}`
    context   rows that are likelier (or numbers that are told whole) where an earlier field of the message has a
              certain value; beside the field's own table, which is gone to by an escape
    number    its difference to nothing, to an earlier number of the message, or, in a stream, to what it was before

Encoding and decoding walk the same tree in the same order and keep the same state, so each value that the encoder
looks at, the decoder has. What was before is that of the last message, or of the last one with the same key, if the
model has a key field (readings of many devices on one topic).

Every byte string can be said, since each field can say any text. A pattern needs no grammar: where its pieces stand in
another place than was meant, the fields get other texts, and the message is longer but the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from lexicast.cluster.errors import DictionaryError

from .alphabets import ALPHABETS, letter_values, run_number, run_of, run_slots
from .entropy import Step, SymbolTable, Unfolding
from .histograms import Histogram
from .number_formats import DIGITS_MAX, PADDED, parse_number, render_number
from .text_parts import cut_text, split_text
from .vocabulary import RUN_BYTES_MAX, Vocabulary

MESSAGE_BYTES_MAX: Final = 4_096
"""Of a message that goes as fields. An integer of n bytes takes n steps of n: longer ones go the dictionary's way."""
KEYS_MAX: Final = 256
"""Messages that a stream remembers, each the last one with its key: the least recently used goes."""
KEPT_MAX: Final = 8_192
"""And values of them, all fields of each counted: a message of many fields is remembered with fewer others."""

RATE_ONE: Final = 128
"""The rates of repetition, a field: of so many."""
_RATE_SHIFT: Final = 4
_RATE_ROUND: Final = 15
_NUMBER_END: Final = 10**DIGITS_MAX
_NO_TEXT: Final = b""


class Snapshot:
    """The values and numbers of the last message with a key, of those fields alone that look at them, by their slots:
    a message of 4 KiB is not kept with each of KEYS_MAX keys."""

    __slots__ = ("numbers", "values")

    def __init__(self, values: list[bytes], numbers: list[int]) -> None:
        self.values = values
        self.numbers = numbers


class FieldState:
    """What the fields of a message can refer to: values of this message, and of those before in a stream."""

    __slots__ = ("before", "entities", "kept", "key", "numbers", "rates", "streaming", "values")

    def __init__(self, model: FieldsModel, streaming: bool) -> None:
        self.streaming = streaming
        self.begin(model)

    def begin(self, model: FieldsModel) -> None:
        """Nothing was before."""
        count = len(model.fields)
        self.values: list[bytes] = [_NO_TEXT] * count
        self.numbers: list[int] = [0] * count
        self.rates: list[int] = list(model.rates) if self.streaming else []
        self.entities: OrderedDict[bytes, Snapshot] = OrderedDict()
        self.kept = model.kept
        self.key: bytes | None = None
        self.before: Snapshot | None = None

    def entity(self, key: bytes) -> None:
        """The key of this message is known: what was before is now that of its last message, if there was one."""
        self.key = key
        self.before = self.entities.get(key)

    def ended(self) -> None:
        """All of a message of a stream is known."""
        if self.key is not None:
            values, numbers = self.values, self.numbers
            kept = self.kept
            self.entities[self.key] = Snapshot([values[id] for id in kept], [numbers[id] for id in kept])
            self.entities.move_to_end(self.key)
            count = len(self.entities)
            if count > KEYS_MAX or count * len(self.values) > KEPT_MAX:
                self.entities.popitem(last=False)
        self.key = self.before = None


class Context:
    """What a field's value is likely to be where an earlier field has a certain value. Symbol 0: something else."""

    __slots__ = ("steps", "table", "values")

    def __init__(self, values: Sequence[bytes], counts: Sequence[int]) -> None:
        """`counts`: of something else, and of each value. Raises DictionaryError when they are no table for them."""
        if len(counts) != 1 + len(values):
            raise DictionaryError("a context of a field model has values without counts")
        self.values = list(values)
        self.table = SymbolTable(counts)
        self.steps = dict(zip(values, self.table.steps[1:], strict=True))


class Pattern:
    """Pieces of text with a field between each two; or, without pieces, fields of so many bytes each (`widths`)."""

    __slots__ = ("_pieces_bytes", "_whole", "fields", "pieces", "widths")

    def __init__(self, pieces: Sequence[bytes], fields: Sequence[Field], widths: Sequence[int] = ()) -> None:
        """Raises DictionaryError unless there is one field at least, and one piece more, the inner ones not empty, or
        one width for each, of a byte or more."""
        self.widths = list(widths)
        self._whole = sum(widths)
        self.pieces = list(pieces)
        self._pieces_bytes = sum(map(len, self.pieces))
        self.fields = list(fields)
        if widths:
            wrong = len(pieces) > 0 or len(widths) != len(fields) or min(widths) < 1
        else:
            wrong = not fields or len(pieces) != len(fields) + 1 or not all(pieces[1:-1])
        if wrong:
            raise DictionaryError("a pattern of a field model has pieces and fields that do not alternate")

    def split(self, text: bytes) -> list[bytes] | None:
        """What stands where the fields are; None when `text` is not of the pattern."""
        if self.widths:
            return cut_text(text, self.widths) if len(text) == self._whole else None
        return split_text(text, self.pieces)

    def take(self, unfolding: Unfolding, state: FieldState, vocabulary: Vocabulary) -> bytes:
        """A text of this pattern, as the next steps say."""
        pieces = self.pieces
        if self.widths:
            return b"".join([field.take(unfolding, state, vocabulary) for field in self.fields])
        unfolding.spend(self._pieces_bytes)
        out = [pieces[0]]
        at = 1
        for field in self.fields:
            out.append(field.take(unfolding, state, vocabulary))
            out.append(pieces[at])
            at += 1
        return b"".join(out)


class Reference(NamedTuple):
    """An earlier number of the message, times a factor, divided and rounded down."""

    field: int
    times: int
    over: int


class NumberField:
    """How a field's numbers are written, foretold and distributed.

    `references`: earlier numbers of the message, whose sum a number is a difference to; `stream`: the histogram of
    differences to what it was before, or None.
    """

    __slots__ = ("form", "histogram", "places", "references", "stream")

    def __init__(
        self,
        form: int,
        places: int,
        histogram: Histogram,
        references: Sequence[Reference],
        stream: Histogram | None,
    ) -> None:
        self.form = form
        self.places = places
        self.histogram = histogram
        self.references = list(references)
        self.stream = stream

    def foretold(self, numbers: list[int]) -> int:
        """By the references; 0 where that would be no number that a field has."""
        told = 0
        for reference in self.references:
            told += numbers[reference.field] * reference.times // reference.over
        return told if -_NUMBER_END < told < _NUMBER_END else 0

    def text(self, number: int) -> bytes:
        """Raises DictionaryError for a number that `parse_number` never gives."""
        if not -_NUMBER_END < number < _NUMBER_END or (self.form == PADDED and number < 0):
            raise DictionaryError("a frame of fields has a number that is too long")
        try:
            return render_number(number, self.form, self.places)
        except OverflowError:
            raise DictionaryError("a frame of fields has a number that is too long") from None


class RunField:
    """A run of one alphabet, `least` to `most` bytes.

    `positions`: for each of the first bytes the table of its letters, as many as the alphabet has, or None: all alike.
    """

    __slots__ = ("alphabet", "least", "most", "positions")

    def __init__(self, alphabet: int, least: int, most: int, positions: Sequence[SymbolTable | None] = ()) -> None:
        """Raises DictionaryError unless 1 <= least <= most <= RUN_BYTES_MAX, and there are no more tables than that."""
        if not 1 <= least <= most <= RUN_BYTES_MAX or len(positions) > most:
            raise DictionaryError(f"a run of a field model has {least} to {most} bytes and {len(positions)} tables")
        self.alphabet = alphabet
        self.least = least
        self.most = most
        self.positions = list(positions)

    def fits(self, text: bytes) -> bool:
        """Whether it is one."""
        return self.least <= len(text) <= self.most and not text.translate(None, ALPHABETS[self.alphabet])

    def put(self, text: bytes, steps: list[Step]) -> None:
        """Append the steps of a text that fits."""
        length, alphabet = len(text), self.alphabet
        if self.most > self.least:
            steps.append((length - self.least, 1, self.most - self.least + 1))
        positions = self.positions
        if not positions:
            steps.append((run_number(text, alphabet), 1, run_slots(alphabet, length)))
            return
        alike = bytearray()
        for at, value in enumerate(letter_values(text, alphabet)):
            table = positions[at] if at < len(positions) else None
            if table is None:
                alike.append(text[at])
            else:
                steps.append(table.steps[value])
        steps.append((run_number(bytes(alike), alphabet), 1, run_slots(alphabet, len(alike))))

    def take(self, unfolding: Unfolding) -> bytes:
        """The run that the next steps say."""
        length, alphabet = self.least, self.alphabet
        if self.most > length:
            length += unfolding.uniform(self.most - length + 1)
        unfolding.spend(length)
        positions = self.positions
        if not positions:
            return run_of(unfolding.uniform(run_slots(alphabet, length)), alphabet, length)
        letters = ALPHABETS[alphabet]
        out = bytearray(length)
        alike: list[int] = []
        for at in range(length):
            table = positions[at] if at < len(positions) else None
            if table is None:
                alike.append(at)
            else:
                out[at] = letters[unfolding.symbol(table)]
        rest = run_of(unfolding.uniform(run_slots(alphabet, len(alike))), alphabet, len(alike))
        for at, letter in zip(alike, rest, strict=True):
            out[at] = letter
        return bytes(out)


class Field:
    """A place in a pattern, or the message."""

    __slots__ = (
        "_row_steps",
        "by_key",
        "context",
        "contexts",
        "id",
        "is_key",
        "number",
        "patterns",
        "repeats",
        "rows",
        "run",
        "slot",
        "table",
    )

    def __init__(
        self,
        id: int,
        rows: Sequence[bytes],
        patterns: Sequence[Pattern],
        number: NumberField | None,
        run: RunField | None,
        counts: Sequence[int],
    ) -> None:
        """`counts`: of each row, each pattern, the number, the run (as there are), and text.

        Raises DictionaryError when they are no table for these.
        """
        self.id = id
        self.rows = list(rows)
        self.patterns = list(patterns)
        self.number = number
        self.run = run
        self.table = SymbolTable(counts)
        if len(counts) != len(rows) + len(patterns) + (number is not None) + (run is not None) + 1:
            raise DictionaryError("a field of a field model has more or fewer counts than alternatives")
        self._row_steps = dict(zip(rows, self.table.steps[: len(rows)], strict=True))
        self.context = -1
        self.contexts: dict[bytes, Context] = {}
        self.repeats = False
        self.by_key = False
        self.is_key = False
        self.slot = -1

    def put(self, value: bytes, steps: list[Step], state: FieldState, vocabulary: Vocabulary) -> None:
        """Append the steps of a value."""
        if state.streaming:
            if self.repeats and self._put_repetition(value, steps, state):
                return
            self._put_new(value, steps, state, vocabulary)
            state.values[self.id] = value
            if self.is_key:
                state.entity(value)
        else:
            self._put_new(value, steps, state, vocabulary)
            state.values[self.id] = value

    def _put_repetition(self, value: bytes, steps: list[Step], state: FieldState) -> bool:
        """Whether it repeats what was before; the step that says so or not is appended."""
        rate = state.rates[self.id]
        before = state.before if self.by_key else None
        if (state.values[self.id] if before is None else before.values[self.slot]) == value:
            steps.append((0, rate, RATE_ONE))
            self._repeat(state, before)
            return True
        steps.append((rate, RATE_ONE - rate, RATE_ONE))
        state.rates[self.id] = max(1, rate - (rate + _RATE_ROUND >> _RATE_SHIFT))
        return False

    def _repeat(self, state: FieldState, before: Snapshot | None) -> bytes:
        id = self.id
        rate = state.rates[id]
        state.rates[id] = min(RATE_ONE - 1, rate + (RATE_ONE - rate + _RATE_ROUND >> _RATE_SHIFT))
        if before is not None:
            state.values[id] = before.values[self.slot]
            state.numbers[id] = before.numbers[self.slot]
        value = state.values[id]
        if self.is_key:
            state.entity(value)
        return value

    def _put_new(self, value: bytes, steps: list[Step], state: FieldState, vocabulary: Vocabulary) -> None:
        if self.context >= 0:
            context = self.contexts.get(state.values[self.context])
            if context is not None:
                step = context.steps.get(value)
                if step is not None:
                    steps.append(step)
                    self._note_number(value, state)
                    return
                steps.append(context.table.steps[0])
        row = self._row_steps.get(value)
        if row is not None:
            steps.append(row)
            return
        if self.number is not None and self._put_number(value, self.number, steps, state):
            return
        if not self.patterns or not self._put_pattern(value, steps, state, vocabulary):
            self._put_text(value, steps, vocabulary)

    def _note_number(self, value: bytes, state: FieldState) -> None:
        number = self.number
        if number is not None:
            state.numbers[self.id] = parse_number(value, number.form, number.places) or 0

    def _put_number(self, value: bytes, format: NumberField, steps: list[Step], state: FieldState) -> bool:
        number = parse_number(value, format.form, format.places)
        if number is None:
            return False
        steps.append(self.table.steps[len(self.rows) + len(self.patterns)])
        if format.stream is not None and state.streaming:
            format.stream.put(number - self._last(state), steps)
        else:
            format.histogram.put(number - format.foretold(state.numbers), steps)
        state.numbers[self.id] = number
        return True

    def _last(self, state: FieldState) -> int:
        before = state.before if self.by_key else None
        return state.numbers[self.id] if before is None else before.numbers[self.slot]

    def _put_pattern(self, value: bytes, steps: list[Step], state: FieldState, vocabulary: Vocabulary) -> bool:
        at = len(self.rows)
        for pattern in self.patterns:
            parts = pattern.split(value)
            if parts is not None:
                steps.append(self.table.steps[at])
                for field, part in zip(pattern.fields, parts, strict=True):
                    field.put(part, steps, state, vocabulary)
                return True
            at += 1
        return False

    def _put_text(self, value: bytes, steps: list[Step], vocabulary: Vocabulary) -> None:
        run = self.run
        if run is not None and run.fits(value):
            steps.append(self.table.steps[-2])
            run.put(value, steps)
            return
        steps.append(self.table.steps[-1])
        vocabulary.put(value, steps)

    def take(self, unfolding: Unfolding, state: FieldState, vocabulary: Vocabulary) -> bytes:
        """The value that the next steps say. Raises DictionaryError when there is none."""
        if state.streaming and self.repeats:
            before = state.before if self.by_key else None
            rate = state.rates[self.id]
            if unfolding.first_of(rate, RATE_ONE):
                value = self._repeat(state, before)
                unfolding.spend(len(value))
                return value
            state.rates[self.id] = max(1, rate - (rate + _RATE_ROUND >> _RATE_SHIFT))
        value = self._take_new(unfolding, state, vocabulary)
        state.values[self.id] = value
        if self.is_key and state.streaming:
            state.entity(value)
        return value

    def _take_new(self, unfolding: Unfolding, state: FieldState, vocabulary: Vocabulary) -> bytes:
        if self.context >= 0:
            context = self.contexts.get(state.values[self.context])
            if context is not None:
                symbol = unfolding.symbol(context.table)
                if symbol:
                    value = context.values[symbol - 1]
                    self._note_number(value, state)
                    unfolding.spend(len(value))
                    return value
        symbol = unfolding.symbol(self.table)
        rows = self.rows
        if symbol < len(rows):
            unfolding.spend(len(rows[symbol]))
            return rows[symbol]
        symbol -= len(rows)
        if symbol < len(self.patterns):
            return self.patterns[symbol].take(unfolding, state, vocabulary)
        symbol -= len(self.patterns)
        if self.number is not None:
            if not symbol:
                return self._take_number(self.number, unfolding, state)
            symbol -= 1
        if self.run is not None and not symbol:
            return self.run.take(unfolding)
        return vocabulary.take(unfolding)

    def _take_number(self, format: NumberField, unfolding: Unfolding, state: FieldState) -> bytes:
        if format.stream is not None and state.streaming:
            number = format.stream.take(unfolding) + self._last(state)
        else:
            number = format.histogram.take(unfolding) + format.foretold(state.numbers)
        text = format.text(number)
        state.numbers[self.id] = number
        unfolding.spend(len(text))
        return text


class FieldsModel:
    """The root field, all fields by id, and what they share. `kept`: those that look at the last message with a key."""

    __slots__ = ("fields", "kept", "rates", "root", "vocabulary")

    def __init__(self, root: Field, fields: Sequence[Field], rates: Sequence[int], vocabulary: Vocabulary) -> None:
        """`rates`: how often each field repeats, of RATE_ONE, for streams to begin with."""
        self.root = root
        self.fields = list(fields)
        self.rates = list(rates)
        self.vocabulary = vocabulary
        self.kept = [field.id for field in self.fields if field.by_key]
        for slot, id in enumerate(self.kept):
            self.fields[id].slot = slot

    def fits(self, message: bytes) -> bool:
        """Whether a row or a pattern of the root fits."""
        root = self.root
        if root.number is not None or message in root.rows or (root.run is not None and root.run.fits(message)):
            return True
        return any([pattern.split(message) is not None for pattern in root.patterns])

    def steps(self, message: bytes, state: FieldState) -> list[Step]:
        """What says `message`; `state` goes on."""
        steps: list[Step] = []
        self.root.put(message, steps, state, self.vocabulary)
        state.ended()
        return steps

    def message(self, unfolding: Unfolding, state: FieldState) -> bytes:
        """What the steps say; `state` goes on. Raises DictionaryError when they say no message of its room."""
        message = self.root.take(unfolding, state, self.vocabulary)
        if unfolding.state:
            raise DictionaryError("a frame of fields does not end where its message does")
        state.ended()
        return message
