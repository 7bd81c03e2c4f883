"""Whether a connection of MQTT 3.1.1 begins with the bridge bit: what its broker has made of it decides. Pure.

With the bit nothing comes back that the bridge has published; without it what comes back is counted off, so it is worth
having. A broker that does not know it says that it does not speak this version, or does not answer, mostly closes, as
it may for other reasons too (it stops, a proxy is in front of it):

    never let in with it         the other way, after each connection that was not answered
    let in with it               with it; where LOYAL_MAX in a row were not answered the next one without it, and so on
    let in with it, now without  without it until that connection ends, then with it again

So a broker that has changed its mind is reached, and one that was only away is told of a bridge again.
"""

from __future__ import annotations

from typing import Final

LOYAL_MAX: Final = 3


class BridgeBit:
    """`tells`: whether this connection, or the next one, has it."""

    def __init__(self, wanted: bool) -> None:
        """`wanted`: whether it is to be tried at all."""
        self.tells = wanted
        self._wanted = wanted
        self._known = False
        self._unanswered = 0

    def accepted(self) -> None:
        """The connection is let in."""
        self._known = self._known or self.tells
        self._unanswered = 0

    def refused(self) -> None:
        """The broker says that it does not speak this version."""
        self._known = False
        self.tells = self._wanted and not self.tells

    def unanswered(self) -> None:
        """The broker has closed it, or said nothing."""
        self._unanswered += 1
        if self._known:
            self.tells = self._unanswered % (LOYAL_MAX + 1) != LOYAL_MAX
        else:
            self.tells = self._wanted and not self.tells

    def ended(self) -> None:
        """A connection has ended, let in or not."""
        if not self._unanswered:
            self.tells = self.tells or self._known
