"""What a field model has learned, in lines for people: patterns with numbered fields, what each field is and costs.

Bits are what the model's own tables expect of a message that goes alone; a text that it has no row for costs what its
characters cost, some 5 bits each, which is not counted. What an earlier field foretells costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from typing import Final

from .entropy import SymbolTable
from .histograms import Histogram
from .model import Field, FieldsModel, NumberField, Pattern, Reference
from .number_formats import FIXED, PADDED, PLAIN, decimals_of, render_number

_ROWS_SHOWN: Final = 5
_TEXT_SHOWN: Final = 40


def describe_model(model: FieldsModel) -> Iterator[str]:
    """The lines."""
    root = model.root
    total = root.table.total
    for row, step in zip(root.rows, root.table.steps, strict=False):
        yield f"{_shown(row)}   {_percent(step[1], total)} of messages"
    for pattern, step in zip(root.patterns, root.table.steps[len(root.rows) :], strict=False):
        yield f"{_template(pattern)}   {_percent(step[1], total)} of messages, {pattern_bits(pattern):.1f} bits each"
        for field in pattern.fields:
            yield from _field(field, 1)
    yield f"anything else   {_percent(root.table.steps[-1][1], total)}"
    words = len(model.vocabulary.words)
    if words:
        shown = ", ".join(map(_shown, model.vocabulary.words[:_ROWS_SHOWN]))
        yield f"texts have {words} words in common, such as {shown}"


def _template(pattern: Pattern) -> str:
    if pattern.widths:
        fields = zip(pattern.fields, pattern.widths, strict=True)
        return "".join([f"<{field.id}: {width} B>" for field, width in fields])
    parts = [_plain(pattern.pieces[0])]
    for field, piece in zip(pattern.fields, pattern.pieces[1:], strict=True):
        parts += [f"<{field.id}>", _plain(piece)]
    return "".join(parts)


def _field(field: Field, depth: int) -> Iterator[str]:
    indent = "  " * depth
    yield f"{indent}<{field.id}> {field_bits(field):.1f} bits: {'; '.join(_facts(field))}"
    for pattern in field.patterns:
        yield f"{indent}  {_template(pattern)}"
        for inner in pattern.fields:
            yield from _field(inner, depth + 2)


def _facts(field: Field) -> Iterator[str]:
    if field.context >= 0:
        yield f"known from <{field.context}> for {len(field.contexts)} of its values"
    if field.rows:
        yield f"one of {len(field.rows)}: {_most_frequent(field)}"
    if field.number is not None:
        yield _number(field.number)
    if field.run is not None:
        run = field.run
        length = f"{run.least}" if run.least == run.most else f"{run.least} to {run.most}"
        yield f"a run of {length} characters of one kind"
    if field.patterns:
        yield "composed"
    if field.is_key:
        yield "streams remember by it"
    elif field.repeats:
        yield "streams say when it stays" + (" for its key" if field.by_key else "")
    if not (field.rows or field.patterns or field.number or field.run):
        yield "text"


def _most_frequent(field: Field) -> str:
    counted = sorted(zip(field.table.steps, field.rows, strict=False), key=lambda one: -one[0][1])
    shown = [f"{_shown(row)} {_percent(step[1], step[2])}" for step, row in counted[:_ROWS_SHOWN]]
    return ", ".join(shown) + (", ..." if len(counted) > _ROWS_SHOWN else "")


def _number(number: NumberField) -> str:
    edges = number.histogram.edges
    decimals = decimals_of(number.form, number.places)
    lower, upper = (_decimal(edge, decimals) for edge in (edges[0], edges[-1] - 1))
    if number.references:
        text = f"number, {' + '.join([_reference(each) for each in number.references])} + ({lower} to {upper})"
    else:
        text = f"number {lower} to {upper}"
    if number.form == PADDED:
        text += f" of {number.places} digits"
    if number.stream is not None:
        text += f", {histogram_bits(number.stream):.1f} bits by its change in streams"
    return text


def _decimal(number: int, decimals: int) -> str:
    return render_number(number, FIXED if decimals else PLAIN, decimals).decode()


def _reference(reference: Reference) -> str:
    times = f"{reference.times} x " if reference.times != 1 else ""
    return f"{times}<{reference.field}>" + (f" / {reference.over}" if reference.over != 1 else "")


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}%"


def _plain(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _shown(text: bytes) -> str:
    return repr(_plain(text[:_TEXT_SHOWN]) + ("..." if len(text) > _TEXT_SHOWN else ""))


def table_bits(table: SymbolTable) -> float:
    """What a symbol of the table is expected to cost."""
    return sum([count * log2(total / count) / total for _, count, total in table.steps])


def histogram_bits(histogram: Histogram) -> float:
    """What a number is expected to cost."""
    edges, total = histogram.edges, histogram.table.total
    within = 0.0
    for at, step in enumerate(histogram.table.steps[1:-1]):
        within += step[1] * log2(edges[at + 1] - edges[at]) / total
    return table_bits(histogram.table) + within


def pattern_bits(pattern: Pattern) -> float:
    """What a text of the pattern is expected to cost."""
    return sum(map(field_bits, pattern.fields))


def field_bits(field: Field) -> float:
    """What a value is expected to cost, texts not counted."""
    table = field.table
    bits = table_bits(table)
    at = len(field.rows)
    for pattern in field.patterns:
        bits += table.steps[at][1] / table.total * pattern_bits(pattern)
        at += 1
    if field.number is not None:
        bits += table.steps[at][1] / table.total * histogram_bits(field.number.histogram)
    return bits


def model_texts(model: FieldsModel) -> Iterator[bytes]:
    """The texts that it holds as they stood in messages: rows, what is between fields, what foretells and is foretold,
    words. (How numbers are distributed is none.)"""
    yield from model.vocabulary.words
    for field in model.fields:
        yield from field.rows
        for pattern in field.patterns:
            yield from pattern.pieces
        for known, context in field.contexts.items():
            yield known
            yield from context.values
