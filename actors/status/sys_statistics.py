"""The values of `$SYS/broker/...`, under the names that Mosquitto has for them. Pure: times are given."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from lexicast.cluster.topics.names import SYS_PREFIX

_BROKER: Final = SYS_PREFIX + b"broker/"
_MINUTES: Final = (1, 5, 15)


class SysCounts(NamedTuple):
    """What a broker has counted since it began, and what it has now."""

    connected: int
    connections: int
    subscriptions: int
    shared_subscriptions: int
    published: int
    delivered: int


class SysStatistics:
    """The values by topic. Times in seconds.

    Averages over 1, 5 and 15 minutes are of what came a minute, older rounds weighing e times less each of these.
    """

    def __init__(self, version: str, now_s: float, counts: SysCounts) -> None:
        self._version = version
        self._since_s = self._last_s = now_s
        self._last = counts
        self._connected_max = counts.connected
        self._loads: dict[str, list[float]] = {"connections": [0.0] * 3, "published": [0.0] * 3, "delivered": [0.0] * 3}

    def round(self, now_s: float, counts: SysCounts) -> None:
        """So much has been counted by now."""
        seconds = now_s - self._last_s
        if seconds > 0:
            for name, loads in self._loads.items():
                a_minute = (getattr(counts, name) - getattr(self._last, name)) * 60 / seconds
                for at, minutes in enumerate(_MINUTES):
                    weight = math.exp(-seconds / (60 * minutes))
                    loads[at] = loads[at] * weight + a_minute * (1 - weight)
        self._last_s, self._last = now_s, counts
        self._connected_max = max(self._connected_max, counts.connected)

    def values(self) -> dict[bytes, bytes]:
        """Topic -> payload, as of the last round."""
        counts = self._last
        found = {
            "version": f"lexicast version {self._version}",
            "uptime": f"{self._last_s - self._since_s:.0f} seconds",
            "clients/connected": f"{counts.connected}",
            "clients/maximum": f"{self._connected_max}",
            "subscriptions/count": f"{counts.subscriptions}",
            "shared_subscriptions/count": f"{counts.shared_subscriptions}",
            "publish/messages/received": f"{counts.published}",
            "publish/messages/sent": f"{counts.delivered}",
        }
        for at, minutes in enumerate(_MINUTES):
            found[f"load/connections/{minutes}min"] = f"{self._loads['connections'][at]:.2f}"
            found[f"load/publish/received/{minutes}min"] = f"{self._loads['published'][at]:.2f}"
            found[f"load/publish/sent/{minutes}min"] = f"{self._loads['delivered'][at]:.2f}"
        return {_BROKER + name.encode(): value.encode() for name, value in found.items()}
