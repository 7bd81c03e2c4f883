"""The choice among candidates: who has room, who is best, and what is done where nobody has room. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import Integers
from .network import BrokerNetwork, Floats


class Loads:
    """What each broker would send if all that it backs up failed over to it: P_j (eq. 7), in bytes a second."""

    def __init__(self, network: BrokerNetwork) -> None:
        self.own = network.own_load_bytes_s
        self.capacity = network.capacity_bytes_s
        self.total: Floats = network.own_load_bytes_s.copy()

    def give(self, broker: int, backup: int) -> None:
        """`backup` backs up `broker`, too."""
        self.total[backup] += self.own[broker]

    def take(self, broker: int, backup: int) -> None:
        """`backup` does not back up `broker` any more."""
        self.total[backup] -= self.own[broker]

    def room(self, load_bytes_s: NDArray[Any], brokers: Integers) -> NDArray[np.bool_]:
        """Which of `brokers` would be below their capacity with so much more [brokers]: eq. 7, P_j < D_j."""
        return np.asarray(self.total[brokers] + load_bytes_s < self.capacity[brokers])

    def over(self) -> NDArray[np.bool_]:
        """Which brokers are not below their capacity [brokers]."""
        return np.asarray(self.total >= self.capacity)

    def best(self, broker: int, candidates: Integers, score: Integers) -> int:
        """The candidate that becomes the backup of `broker`: of those with room the one of least score, of equal ones
        that of least load, of equal ones the first.

        Where none has room, the one that would be least beyond its capacity. The paper leaves `none` there, and so a
        broker without a backup; one that has too much to do, if ever both fail, is better than that.
        """
        room = self.room(self.own[broker], candidates)
        if not room.any():
            return int(candidates[np.argmin(self.total[candidates] - self.capacity[candidates])])
        able = candidates[room]
        return int(able[np.lexsort((self.total[able], score[room]))[0]])
