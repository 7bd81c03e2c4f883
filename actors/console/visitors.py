"""Who asks a console something, and what that visitor may see.

    Authorization: Bearer, the operators' token     an operator (`lexicast page --token` prints it)
    Authorization: Bearer, a token of a user        that user, as over MQTT (security.jwt_key_file)
    Authorization: Basic, or a cookie of `login`    that user (security.password_file)
    a certificate that names a user                 that user (tls.user_from)
    nothing, from the machine itself                nobody, and an operator where there are no users; as far as
                                                    mqtt.allow_anonymous lets such clients in
    nothing, from elsewhere                         not let in, whatever that knob says

Of those who log in, users whom `http.operators` names are operators. The operators' token is made from the cluster's
key, which nobody can find from it.

The machine itself: both ends of the connection are here, the page is asked for by a name of the machine's own (a site
whose name somebody has pointed here is another origin, and no way in), and no proxy says that it speaks for others.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import math
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web

from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.addresses import is_loopback, is_same_machine
from lexicast.cluster.security.operator_token import operator_token

from ..broker.security.rights import ClientRights, Rights
from ..mqtt.codec.packets import CONNECTION_RATE_EXCEEDED, SERVER_BUSY, SERVER_UNAVAILABLE, SUCCESS, V5, Connect
from ..mqtt.login.logins import Login, Logins, end_of

COOKIE: Final = "lexicast"
# Who has logged in on a page, and for how long; the oldest make way.
SESSIONS_MAX: Final = 1_000
SESSION_S: Final = 12 * 3_600.0
# What names the console's visitors as publishers, and in rules that ask for client ids.
CLIENT_ID: Final = "console"
# A proxy's word that it speaks for somebody else.
PROXIED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Visitor(NamedTuple):
    """`user`: "" where nobody has logged in; `rights`: what it may do with topics; `may_stay`: whether it is still let
    in, for answers that last; `by_cookie`: it has logged in on the page, and can log out."""

    user: str
    is_operator: bool
    rights: ClientRights
    may_stay: Callable[[], bool]
    by_cookie: bool = False


class NotLetInError(Exception):
    """A visitor is not let in. `status`: of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Session(NamedTuple):
    login: Login
    until_s: float


class Visitors:
    """See the module's docstring."""

    def __init__(self, config: Config, logins: Logins, rights: Rights, cluster_key: bytes) -> None:
        self._config = config
        self._logins = logins
        self._rights = rights
        self._has_users = config.security.has_users or config.tls.user_from != "no"
        self._token = operator_token(cluster_key)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def visitor(self, request: web.Request) -> Visitor:
        """Who it is. Raises NotLetInError."""
        said = request.headers.get("Authorization", "")
        scheme, _, value = said.partition(" ")
        if scheme.lower() == "bearer":
            if hmac.compare_digest(value.strip().encode(errors="replace"), self._token.encode()):
                return self._of(_OPERATOR)
            return self._of(await self._login(request, None, value.strip().encode(errors="replace")))
        if scheme.lower() == "basic":
            return self._of(await self._login(request, *_basic(value)))
        if (kept := self._kept(cookie := request.cookies.get(COOKIE, ""))) is not None:
            return self._of(kept, cookie)
        if request.secure and self._config.tls.user_from != "no":
            login = await self._login(request, None, None)
            if login.user:
                return self._of(login)
        if self.is_from_here(request) and self._config.anonymous in ("loopback", "always"):
            return Visitor("", not self._has_users, self._rights.client("", CLIENT_ID), lambda: True)
        raise NotLetInError(401, "log in: by a user of the cluster, or with the operators' token")

    def is_from_here(self, request: web.Request) -> bool:
        """Whether it comes from the machine itself; see the module's docstring."""
        transport = request.transport
        if transport is None or any(name in request.headers for name in PROXIED):
            return False
        peer, own = end_of(transport, "peername"), end_of(transport, "sockname")
        return is_same_machine(peer, own) and is_loopback(_host_name(request.headers.get("Host", "")))

    async def log_in(self, request: web.Request, user: str, password: str) -> tuple[str, Visitor]:
        """A cookie's value, and whose it is. Raises NotLetInError."""
        if not user and hmac.compare_digest(password.encode(), self._token.encode()):
            login = _OPERATOR
        else:
            login = await self._login(request, user, password.encode())
        name, now_s = secrets.token_urlsafe(32), asyncio.get_running_loop().time()
        self._sessions[name] = _Session(login, min(login.until_s, now_s + SESSION_S))
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return name, self._of(login, name)

    def log_out(self, request: web.Request) -> None:
        """Forget a cookie."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def _kept(self, cookie: str) -> Login | None:
        """Who logged in before; None: nobody, or not any more."""
        session = self._sessions.get(cookie)
        if session is None:
            return None
        if self._holds(session.login, session.until_s):
            return session.login
        del self._sessions[cookie]
        return None

    def _holds(self, login: Login, until_s: float) -> bool:
        return until_s > asyncio.get_running_loop().time() and self._logins.holds(login)

    async def _login(self, request: web.Request, user: str | None, password: bytes | None) -> Login:
        transport = request.transport
        if transport is None:
            raise NotLetInError(400, "the connection has ended")
        found = self._logins.check(
            Connect(V5, CLIENT_ID, user_name=user, password=password), transport, transport.is_closing
        )
        login = await found if isinstance(found, Awaitable) else found
        if login.reason_code == SUCCESS and (login.user or password is None):
            return login
        if login.reason_code in (CONNECTION_RATE_EXCEEDED, SERVER_BUSY):
            raise NotLetInError(429, "too many failures from there, or for that user: wait")
        if login.reason_code == SERVER_UNAVAILABLE:
            raise NotLetInError(503, "the users are not known yet: try again in a moment")
        raise NotLetInError(401, "user name and password do not go together, or there is no such user")

    def _of(self, login: Login, cookie: str = "") -> Visitor:
        def may_stay() -> bool:
            return self._kept(cookie) is not None if cookie else self._holds(login, login.until_s)

        # To whoever has the operators' token the cluster's key belongs, and rules do not apply.
        rights = _ALL if login is _OPERATOR else self._rights
        is_operator = login is _OPERATOR or login.user in self._config.http.operators
        return Visitor(login.user, is_operator, rights.client(login.user, CLIENT_ID), may_stay, cookie != "")


_ALL: Final = Rights()
_OPERATOR: Final = Login(SUCCESS, "", "the operators' token", until_s=math.inf)


def _basic(value: str) -> tuple[str, bytes]:
    try:
        user, _, password = base64.b64decode(value, validate=True).partition(b":")
        return user.decode(), password
    except ValueError:  # of binascii, or a letter that is none of Base64's, or of UTF-8
        raise NotLetInError(401, "Authorization: Basic has a user and a password, in Base64") from None


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
