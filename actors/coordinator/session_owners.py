"""The brokers that own sessions: which of them are gone, and when that is to be looked into.

An owner is gone when a newer incarnation of it has come, or when it has had no link for ORPHANED_S. One that comes back
before was suspected wrongly: that costs a warning, and it keeps its sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from lexicast.cluster.clock import US_PER_S, Clock
from lexicast.cluster.records import SessionSaved

from .peers import BrokerPeer

log = logging.getLogger(__name__)

# How long a broker may be without a link before its sessions are taken from it.
ORPHANED_S: Final = 10.0
# In the place of a broker's name: sessions of whichever brokers are gone.
ANY_BROKER: Final = ""


class SessionOwners:
    """See the module's docstring. `peers`: the brokers whose links have stood here, by name, as they are now."""

    def __init__(self, peers: Mapping[str, BrokerPeer], clock: Clock) -> None:
        self._peers = peers
        self._clock = clock
        # Monotonic times in seconds: since when a broker has had no link, and when to look for its sessions.
        self._started = clock.monotonic()
        self._gone: dict[str, float] = {}
        self._suspects: dict[str, float] = {ANY_BROKER: self._started + ORPHANED_S}

    def linked(self, peer: BrokerPeer, newer: bool) -> None:
        """A broker's link stands; `newer`: another incarnation than was known here."""
        now = self._clock.monotonic()
        since = self._gone.pop(peer.name, now)
        self._suspects.pop(peer.name, None)
        if newer:
            self._suspects[peer.name] = now
        elif since < now:
            kept = "it keeps its sessions" if now - since < ORPHANED_S else "others may have its sessions by now"
            log.warning("%s has come back after %.1f s without a link: %s", peer.name, now - since, kept)

    def unlinked(self, name: str) -> None:
        """A broker's link has ended; it may come back."""
        self._gone[name] = self._clock.monotonic()
        self._suspects[name] = self._gone[name] + ORPHANED_S

    def suspect(self, name: str) -> None:
        """Have the broker's sessions looked for in ORPHANED_S at the latest."""
        self._suspects.setdefault(name, self._clock.monotonic() + ORPHANED_S)

    def take_due(self) -> bool:
        """Whether sessions are to be looked for now; asked again, it is so no more."""
        now = self._clock.monotonic()
        due = [name for name, at in self._suspects.items() if at <= now]
        for name in due:
            del self._suspects[name]
        return bool(due)

    def is_gone(self, session: SessionSaved) -> bool:
        """Whether the owner of a session will not come back for it."""
        if not session.owner:
            return False
        peer = self._peers.get(session.owner)
        if peer is not None and peer.incarnation > session.incarnation:
            return True
        if peer is not None and peer.incarnation == session.incarnation and not peer.link.closed:
            return False
        return self._clock.monotonic() - self._gone.get(session.owner, self._started) >= ORPHANED_S

    def gone_us(self, session: SessionSaved) -> int:
        """When its owner went, as far as is known here."""
        since = self._clock.monotonic() - self._gone.get(session.owner, self._started)
        peer = self._peers.get(session.owner)
        return self._clock.time_us() - (0 if peer is not None and not peer.link.closed else int(since * US_PER_S))
