"""The places of a broker's connections: so many in all, so many of one address (of IPv6: of a network, `party`).

Where nothing is said an address has half of all. The machine itself has as many as there are then: programs on it could
do more harm otherwise, and a proxy on it stands for everybody. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from ..config.tables import MqttConfig
from .addresses import is_loopback
from .back_off import party

SHARE: Final = 2
_NOBODYS: Final = "not known yet"


class ConnectionPlaces:
    """See the module's docstring. Who holds one is named by whatever serves it."""

    def __init__(self, config: MqttConfig) -> None:
        self._most = config.connections_max
        self._most_each = config.connections_per_address_max
        self._held: dict[Hashable, str] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """Those that are held."""
        return len(self._held)

    @property
    def left(self) -> int:
        """How many more there may be."""
        return self._most - len(self._held)

    def take(self, holder: Hashable, address: str | None) -> str:
        """A place for somebody; "", or the knob whose limit is reached, and there is none. `address` None: it is not
        known yet (`name`), the place counts in all alone."""
        if self.left <= 0:
            return "connections_max"
        whose = _NOBODYS if address is None else party(address)
        if address is not None and self._of_address[whose] >= self._most_of(address):
            return "connections_per_address_max"
        self._held[holder] = whose
        self._of_address[whose] += 1
        return ""

    def _most_of(self, address: str) -> int:
        if self._most_each:
            return self._most_each
        return self._most if is_loopback(address) else max(1, self._most // SHARE)

    def name(self, holder: Hashable, address: str) -> str:
        """The address of a holder is known now: as `take`, and where its limit is reached the place is given back."""
        self.give_back(holder)
        return self.take(holder, address)

    def hand_over(self, holder: Hashable, other: Hashable) -> None:
        """Something else serves the connection."""
        whose = self._held.pop(holder, None)
        if whose is not None:
            self._held[other] = whose

    def give_back(self, holder: Hashable) -> None:
        """The connection has ended; whoever held no place changes nothing."""
        whose = self._held.pop(holder, None)
        if whose is None:
            return
        self._of_address[whose] -= 1
        if not self._of_address[whose]:
            del self._of_address[whose]
