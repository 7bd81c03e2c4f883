"""A batch of events as the index asks about it: the values of some columns, of the events that have them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .ranks import Floats, Integers


class Batch:
    """Values [events x columns], NaN where an event has none."""

    def __init__(self, values: Floats, columns: Sequence[str]) -> None:
        self._values = values
        self._at = {name: number for number, name in enumerate(columns)}
        self._missing = np.isnan(values)
        # Of each column: some event, every event has no value there. Mostly all have all.
        self._some = self._all = [False] * values.shape[1]
        if self._missing.any():
            self._some = np.asarray(self._missing.any(axis=0)).tolist()
            self._all = np.asarray(self._missing.all(axis=0)).tolist()

    def of(self, columns: Sequence[str]) -> tuple[Floats, Integers | None] | None:
        """Values [events x columns] of the events that have them all, and which events these are (None: every one);
        None where no event is seen to have them."""
        at = [self._at.get(name, -1) for name in columns]
        if any([number < 0 or self._all[number] for number in at]):
            return None
        own: Floats = self._values.take(at, axis=1)
        if not any([self._some[number] for number in at]):
            return own, None
        whole = np.flatnonzero(~self._missing.take(at, axis=1).any(axis=1))
        return own.take(whole, axis=0), whole

    def all_of(self, columns: Sequence[str]) -> Floats:
        """Values [events x columns] of all events, NaN also for a column that the batch does not have."""
        values = np.full((len(self._values), len(columns)), np.nan)
        for number, name in enumerate(columns):
            if name in self._at:
                values[:, number] = self._values[:, self._at[name]]
        return values
