"""Sessions in the requests between brokers, which serve them, and the coordinators that are their homes.

Each travels as the plain array of its fields (`requests`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..clock import US_PER_S
from ..records import NEVER_US

# An expiry interval that means for ever [MQTT-3.1.2.11.2].
EXPIRY_NEVER_S: Final = 2**32 - 1


class SessionClaim(NamedTuple):
    """What a connection brings with it. `connection`: its number in its broker's incarnation, ascending; `uid`, `place`
    and `filters` are the session's if it begins now; `user`: who has logged in ("": nobody); `over`: a user who exists
    no more, whose session of this client id is to end ("": nobody's)."""

    clean: bool
    uid: bytes
    connection: int
    expiry_s: int
    will: bytes
    filters: bytes
    place: bytes
    user: str = ""
    over: str = ""


class SessionGrant(NamedTuple):
    """The answer to `session_open`. `user`: whose it is; where that is not who asked, it is not given, and all else is
    empty."""

    uid: bytes
    generation: int
    present: bool
    filters: bytes
    place: bytes
    user: str = ""


class SessionLeft(NamedTuple):
    """What a connection leaves: `expires_us` 0 while it goes on; `filters` None: as they were."""

    expiry_s: int
    expires_us: int
    will_us: int
    filters: bytes | None
    place: bytes


class SessionHeld(NamedTuple):
    """A session that a broker says it serves; `lasting`: it is written."""

    group: int
    client_id: str
    uid: bytes
    generation: int
    connection: int
    lasting: bool
    user: str = ""


def session_expires_us(expiry_s: int, at_us: int) -> int:
    """When a session whose connection ended at `at_us` is to be forgotten."""
    return NEVER_US if expiry_s == EXPIRY_NEVER_S else at_us + expiry_s * US_PER_S
