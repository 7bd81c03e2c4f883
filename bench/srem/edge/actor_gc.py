"""Garbage collections as serving actors have them, where a driver does their work in its own process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collecting_as_actors_do() -> Iterator[None]:
    """What is there now is left out, full collections are rare: else one of these, of all that a driver keeps, would be
    the most of what it measures."""
    from lexicast.actors.ray.serving import GC_THRESHOLDS  # imports Ray, which takes a second

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
