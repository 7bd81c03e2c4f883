"""The port of a broker for users: Python clients that have no key, and log in as MQTT clients do, at the same ports.

Who may log in is decided where MQTT's logins are (`mqtt.login.logins`), with its limits, its back-off and its audit
trail. Whoever is let in has a session as any Python client's, and the rights of its user (`user_rights`). It stays as
long as its login does: until its token ends, its password changes, or it is gone from the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lexicast.cluster.errors import AuthenticationError, LexicastError, UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.security.authors import NAMES_END

from ...link.link import Link, LinkUser
from ...link.user_handshake import LoginClaim, Opened, UserListenerLink
from ...loop.turns import Turns
from ...mqtt.codec.packets import (
    BAD_USER_NAME_OR_PASSWORD,
    CONNECTION_RATE_EXCEEDED,
    NOT_AUTHORIZED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
)
from ...mqtt.connecting import CLIENT_ID_BYTES_MAX
from ...mqtt.login.logins import Login, Logins

log = logging.getLogger(__name__)

GONE: Final = "the user is another one, or gone"
TURNED_AWAY_BY: Final[dict[int, LexicastError]] = {
    BAD_USER_NAME_OR_PASSWORD: AuthenticationError(
        "the login was refused: a wrong user name, password or token, or none of them is known here"
    ),
    NOT_AUTHORIZED: AuthenticationError("nobody is let in here without a login: give user and password, or token"),
    CONNECTION_RATE_EXCEEDED: UnavailableError("too many logins from here have failed: try again in a minute"),
    SERVER_BUSY: UnavailableError("too many passwords are being verified: try again soon"),
    SERVER_UNAVAILABLE: UnavailableError("the broker does not know the users yet: try again soon"),
}


class UserPort:
    """See the module's docstring. `opened(link, user)` makes the session of whoever has logged in; None where it cannot
    be served now."""

    def __init__(
        self,
        logins: Logins,
        opened: Callable[[Link, str], LinkUser | None],
        greeting: dict[str, Any],
        payload_bytes_max: int,
        beats: Beats,
    ) -> None:
        self._logins = logins
        self._make_session = opened
        self._greeting = greeting
        self._payload_bytes_max = payload_bytes_max
        self._beats = beats
        self._users: dict[UserListenerLink, Login] = {}

    def __len__(self) -> int:
        """Those who are logged in."""
        return len(self._users)

    def link(self, lost: Callable[[Link], None]) -> UserListenerLink:
        """What serves a connection that has come to a port of MQTT; `lost` is told of its end."""

        def ended(link: Link) -> None:
            if isinstance(link, UserListenerLink):
                self._users.pop(link, None)
            lost(link)

        return UserListenerLink(self, self._greeting, self._payload_bytes_max, ended, self._beats)

    async def log_in(self, link: UserListenerLink, claim: LoginClaim) -> Opened:
        """See `LoginGate`."""
        if not 0 < len(claim.client_id.encode()) <= CLIENT_ID_BYTES_MAX or NAMES_END in claim.client_id:
            raise AuthenticationError(f"a client id has 1 to {CLIENT_ID_BYTES_MAX:,} bytes here, and no NUL among them")
        transport = link.transport
        if transport is None:
            raise UnavailableError("the client has left")
        found = self._logins.check(claim, transport, lambda: link.closed)
        login = found if isinstance(found, Login) else await found
        if login.reason_code != SUCCESS:
            raise _refusal(login)
        if not self._logins.holds(login):  # the users have changed while a password was verified
            self._logins.kicked(login, GONE, claim.client_id, transport)
            raise AuthenticationError(f"{GONE}: log in again")
        return partial(self._opened, login)

    def _opened(self, login: Login, link: Link) -> LinkUser | None:
        assert isinstance(link, UserListenerLink)
        session = self._make_session(link, login.user)
        if session is not None:
            self._users[link] = login
        return session

    async def check_logins(self) -> None:
        """The users have changed: those who may not stay are told so, a few at a time."""
        turns, ended = Turns(), 0
        for link, login in list(self._users.items()):
            if not self._logins.holds(login):
                self._kick(link, login, GONE)
                ended += 1
            await turns.give_way()
        if ended:
            log.warning("%d Python clients were disconnected: their users are gone, or have another password", ended)

    def check_terms(self, now_s: float) -> None:
        """End the logins whose time is over. `now_s`: the event loop's."""
        for link, login in [(link, login) for link, login in self._users.items() if now_s > login.until_s]:
            self._kick(link, login, "the login is over")

    def _kick(self, link: UserListenerLink, login: Login, why: str) -> None:
        self._users.pop(link, None)
        if link.transport is not None:
            self._logins.kicked(login, why, link.name, link.transport)
        link.turn_away(AuthenticationError(f"{why}: log in again"))


def _refusal(login: Login) -> LexicastError:
    if login.why:
        return AuthenticationError(f"the login was refused: {login.why}")
    return TURNED_AWAY_BY.get(login.reason_code, AuthenticationError("the login was refused"))
