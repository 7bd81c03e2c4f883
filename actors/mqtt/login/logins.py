"""Who a client is, before its session is looked for: by its certificate, its name and password, or by its address.

    a certificate that names a user (tls.user_from)     that user; name and password are not looked at
    a token as password (security.jwt_key_file)         whom it names; a user name has to be the same one
    a user name or a password, where there are users    they have to go together
                               where there are none     mqtt.credentials says what becomes of it
    neither                                             mqtt.allow_anonymous decides by the address (`admission`)

A user who does not exist costs as much time as one who does: some row's salt and hash are made up for the name, of a
kind as frequent as in the file. What was right once is remembered, keyed by a secret of this process, until the user's
row changes, so that a device that comes back costs no slow hash; what was wrong has to wait (`back_off`).

Memory: a digest a user whose hash is slow, CACHED_MAX at most.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import AuthenticationError, LimitError
from lexicast.cluster.security.audit import AuditTrail
from lexicast.cluster.security.back_off import BackOff
from lexicast.cluster.security.likenesses import NO_LIKENESS, Likenesses
from lexicast.cluster.security.passwords import PasswordHash, Passwords, parse_hash
from lexicast.cluster.security.tokens import TokenKey, TokenRules, is_token, read_token

from ...tls.identity import certified_user
from ..codec.packets import (
    BAD_USER_NAME_OR_PASSWORD,
    CONNECTION_RATE_EXCEEDED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
)
from .admission import Claim, admission
from .hashing import Hashing

CACHED_MAX: Final = 200_000

CERTIFICATE: Final = "certificate"
PASSWORD: Final = "password"
TOKEN: Final = "token"


class Login(NamedTuple):
    """What came of a CONNECT. `reason_code`: SUCCESS, or that with which it is refused. `user`: who has logged in
    ("": nobody), `by` what, and with which `row` of the password file, or which key of tokens; `until_s`: when it ends,
    by the monotonic clock."""

    reason_code: int
    user: str = ""
    by: str = ""
    row: str = ""
    until_s: float = math.inf
    # What may be told of why it is refused: of a token, whose holder knows what stands in it.
    why: str = ""


class Logins:
    """See the module's docstring. `counts`: who was let in, by what; `refused`: who was not, by why."""

    def __init__(
        self,
        config: Config,
        time_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`time_s`: monotonic, the event loop's; `wall_s`: since 1970, by which tokens end."""
        self._config = config
        self._time_s = time_s
        self._wall_s = wall_s
        self._passwords: Passwords | None = None
        self._token_keys: list[TokenKey] | None = None
        security = config.security
        self._token_rules = TokenRules(
            security.jwt_algorithms, security.jwt_user, security.jwt_audience, security.jwt_issuer
        )
        self._likenesses = NO_LIKENESS
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[str, bytes] = OrderedDict()
        self._back_off = BackOff()
        self._hashing = Hashing(config.security.hashing_threads, config.security.hashing_waiting_max)
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.audit = AuditTrail()

    def update(self, passwords: Passwords | None, kinds: Likenesses, token_keys: list[TokenKey] | None = None) -> None:
        """These are the users, and the keys of tokens, from now on (None: there are none). Then see who is still held
        (`holds`)."""
        self._token_keys = token_keys
        before, self._passwords, self._likenesses = self._passwords or {}, passwords, kinds
        now = passwords or {}
        for user in [user for user in self._right if before.get(user) != now.get(user)]:
            del self._right[user]

    def holds(self, login: Login) -> bool:
        """Whether somebody who has logged in may stay."""
        if login.by == TOKEN:
            return any([key.fingerprint == login.row for key in self._token_keys or ()])
        if login.by != PASSWORD:
            return True
        return self._passwords is not None and self._passwords.get(login.user) == login.row

    def knows(self, user: str) -> bool:
        """Whether there may be such a user."""
        others = self._config.security.jwt_key_file or self._config.tls.user_from != "no"
        return self._passwords is None or bool(others) or user in self._passwords

    def check(
        self, connect: Claim, transport: asyncio.BaseTransport, is_gone: Callable[[], bool]
    ) -> Login | Awaitable[Login]:
        """What comes of a CONNECT; `is_gone`: its client has left."""
        peer, own = end_of(transport, "peername"), end_of(transport, "sockname")
        try:
            certified = certified_user(transport, self._config.tls)
        except AuthenticationError:
            return self._refused(BAD_USER_NAME_OR_PASSWORD, "a certificate that names nobody", connect, peer)
        if certified:
            return self._right_one(Login(SUCCESS, certified, CERTIFICATE))
        users, keys = self._passwords, self._token_keys
        if users is None and keys is None and self._config.security.has_users:
            return self._refused(SERVER_UNAVAILABLE, "users are not known yet", connect, peer)
        if (users is None and keys is None) or (connect.user_name is None and connect.password is None):
            code = admission(self._config, connect, peer, own)
            if code == SUCCESS:
                self.counts["anonymous"] += 1
                return Login(SUCCESS)
            return self._refused(code, "nobody has logged in", connect, peer)
        if keys is not None and connect.password is not None and is_token(connect.password):
            return self._by_token(keys, connect.password, connect, peer)
        return self._by_password(users or {}, connect, peer, is_gone)

    def _by_token(self, keys: list[TokenKey], token: bytes, connect: Claim, peer: str) -> Login:
        now_s = self._time_s()
        if self._back_off.wait_s(peer, "", now_s):
            return self._refused(CONNECTION_RATE_EXCEEDED, "too many failures", connect, peer)
        try:
            found = read_token(token, keys, self._token_rules, self._wall_s())
            if connect.user_name and connect.user_name != found.user:
                raise AuthenticationError("a token of another user")
        except AuthenticationError as error:
            self._back_off.failed(peer, "", now_s)
            return self._refused(BAD_USER_NAME_OR_PASSWORD, str(error), connect, peer)._replace(why=str(error))
        until_s = now_s + found.until_s - self._wall_s()
        return self._right_one(Login(SUCCESS, found.user, TOKEN, found.fingerprint, until_s))

    def _by_password(
        self, users: Passwords, connect: Claim, peer: str, is_gone: Callable[[], bool]
    ) -> Login | Awaitable[Login]:
        name, password = connect.user_name, connect.password
        if not name or password is None:
            self._back_off.failed(peer, "", self._time_s())
            return self._refused(BAD_USER_NAME_OR_PASSWORD, "no name, or no password", connect, peer)
        row = users.get(name, "")
        digest = self._digest(name, password, row)
        if row and self._right.get(name) == digest:
            self._right.move_to_end(name)
            return self._right_one(Login(SUCCESS, name, PASSWORD, row))
        if self._back_off.wait_s(peer, name, self._time_s()):
            return self._refused(CONNECTION_RATE_EXCEEDED, "too many failures", connect, peer)
        of = parse_hash(row) if row else self._made_up(name)
        if not of.is_slow:
            return self._verified(of.verify(password), connect, peer, row, b"")
        try:
            verified = self._hashing.verify(of, password, peer, lambda: not is_gone())
        except LimitError as error:
            return self._refused(SERVER_BUSY, str(error), connect, peer)
        return self._when_verified(verified, connect, peer, row, digest)

    async def _when_verified(
        self, verified: asyncio.Future[bool], connect: Claim, peer: str, row: str, digest: bytes
    ) -> Login:
        return self._verified(await verified, connect, peer, row, digest)

    def _verified(self, right: bool, connect: Claim, peer: str, row: str, digest: bytes) -> Login:
        name = connect.user_name or ""
        if not (right and row):
            self._back_off.failed(peer, name, self._time_s())
            why = "wrong password" if row else "no such user"
            return self._refused(BAD_USER_NAME_OR_PASSWORD, why, connect, peer)
        self._back_off.succeeded(peer, name)
        login = Login(SUCCESS, name, PASSWORD, row)
        if digest and self.holds(login):
            self._right[name] = digest
            while len(self._right) > CACHED_MAX:
                self._right.popitem(last=False)
        return self._right_one(login)

    def _made_up(self, name: str) -> PasswordHash:
        """The hash of a user who does not exist: of the same kind each time that it is asked for."""
        return self._likenesses.made_up(blake2b(name.encode(), key=self._secret, digest_size=64).digest())

    def _digest(self, name: str, password: bytes, row: str) -> bytes:
        """What is remembered of a password."""
        said = b"".join([len(part).to_bytes(4, "big") + part for part in (name.encode(), row.encode(), password)])
        return blake2b(said, key=self._secret, digest_size=16).digest()

    def _right_one(self, login: Login) -> Login:
        self.counts[login.by] += 1
        return login

    def _refused(self, code: int, why: str, connect: Claim, peer: str) -> Login:
        self.refused[why] += 1
        self.note("login_refused", why, connect.user_name or "", connect.client_id, peer)
        return Login(code)

    def kicked(self, login: Login, why: str, client_id: str, transport: asyncio.BaseTransport) -> None:
        """Somebody who had logged in may not stay."""
        self.refused[why] += 1
        self.note("kicked", why, login.user, client_id, end_of(transport, "peername"))

    def note(self, kind: str, why: str, user: str, client_id: str, address: str) -> None:
        """A line of the audit trail."""
        self.audit.note(kind, self._time_s(), why=why, user=user, client=client_id, address=address)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "users": None if self._passwords is None else len(self._passwords),
            "waiting": self._hashing.waiting,
            "held_up": len(self._back_off),
            "let_in": dict(self.counts),
            "refused": dict(self.refused),
        }

    def close(self) -> None:
        """Verify nothing more."""
        self._hashing.close()


def end_of(transport: asyncio.BaseTransport, which: str) -> str:
    """The IP address of one end of the connection; "" where it is gone."""
    end = transport.get_extra_info(which)
    return str(end[0]) if end else ""
