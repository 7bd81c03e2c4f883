"""The texts that a field model holds, as they stood in messages. (How its numbers are distributed is none.)"""

from __future__ import annotations

from collections.abc import Iterator

from .model import FieldsModel


def model_texts(model: FieldsModel) -> Iterator[bytes]:
    """Rows, what stands between fields, what foretells and is foretold, words."""
    yield from model.vocabulary.words
    for field in model.fields:
        yield from field.rows
        for pattern in field.patterns:
            yield from pattern.pieces
        for known, context in field.contexts.items():
            yield known
            yield from context.values
