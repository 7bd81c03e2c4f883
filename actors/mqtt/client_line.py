"""The line to one MQTT client, as those see it who serve its session; `connection.MqttConnection` is one.

A Protocol and not the class, so that a session, its publishing and its subscriptions stand below the connection that
makes them.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, Protocol

from .codec.packets import Subscribe, Unsubscribe

# Reasons not to read the socket: the pipelines are full, too many PUBRELs wait, the client does not take the answers
# that it asked for, something is held until what is before it has been finished, the client is about to be sent to
# another broker.
NO_ROOM: Final = 1
RELEASES: Final = 2
UNREAD: Final = 4
HELD: Final = 8
GOING: Final = 16


class ClientLine(Protocol):
    """One client's connection."""

    @property
    def is_open(self) -> bool:
        """Whether the client is being served."""

    @property
    def is_closed(self) -> bool:
        """Whether the client has left, or has been told to."""

    def pause(self, reason: int) -> None:
        """Do not read the socket; see the reasons above."""

    def resume(self, reason: int) -> None:
        """The reason has passed."""

    def work(self, work: Coroutine[Any, Any, None], first: bool = False) -> None:
        """Run something that this client waits for. If it fails the connection ends: the client would wait for ever.

        `first`: it is to be finished before anything behind it on the wire is looked at.
        """

    def held_changes(self) -> list[Subscribe | Unsubscribe]:
        """Take the SUBSCRIBEs and UNSUBSCRIBEs that come next of what is held behind such work."""

    def disconnect(self, reason_code: int) -> None:
        """The server ends the connection, and says why as far as the client's version can be told."""

    def end(self, with_will: bool = True, words: bytes = b"") -> None:
        """Let the session go, and then the client, with these last words."""

    def leave(self) -> bool:
        """Serve no session any more. Whether the client has taken its will back, by a DISCONNECT that is held."""

    def hang_up(self, words: bytes = b"") -> None:
        """End the socket, with these last words."""
