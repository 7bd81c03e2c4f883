"""What was learned of a topic family, in words."""

from __future__ import annotations

from collections.abc import Iterator

from lexicast.compression.codecs import FIELDS
from lexicast.compression.dictionary import Dictionary


def summary(dictionary: Dictionary) -> str:
    """One line."""
    packed = len(dictionary.pack())
    learned = f"learned from {dictionary.samples} messages"
    return f"{dictionary.family.decode()}: {dictionary.codec}, {dictionary.id:016x}, {packed} bytes, {learned}"


def description(dictionary: Dictionary) -> Iterator[str]:
    """All that is known of it, in lines. Raises DictionaryError when its content is none."""
    from lexicast.compression.fields.codec import (  # takes a moment: only where a model is shown
        held_model,
        split_fields_content,
    )
    from lexicast.compression.fields.description import describe_model

    yield summary(dictionary)
    if dictionary.codec != FIELDS:
        yield f"pieces of messages, {len(dictionary.content)} bytes of them"
        return
    content = split_fields_content(dictionary.content)
    yield from describe_model(held_model(content.model))
    if content.preset:
        yield f"what fits no template goes with {len(content.preset)} bytes of earlier messages"
