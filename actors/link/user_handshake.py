"""The handshake of a user's link, and its two sides: the dialler says who it is, with a password, a token or a
certificate; the listener has that looked at, which may take a while, and welcomes it or turns it away.

It rides on whatever it is given: TCP of the same machine, or TLS, by whose certificate the dialler knows the listener.
A secret goes over nothing else (`secrets_may_cross`); both sides see to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgpack

from lexicast.cluster.errors import (
    AuthenticationError,
    LexicastError,
    PeerError,
    UnavailableError,
    UntrustedBrokerError,
    remote_error,
)
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import LINK_PREFACE, LOGIN, PROTOCOL_VERSION, TURNED_AWAY, WELCOME, unpacker
from lexicast.cluster.security.addresses import is_same_machine

from .link import BEATS, Link, LinkUser

MIB: Final = 1 << 20
USER_ROLE: Final = "user"
# What a stranger may make a listener hold: a name, a secret.
LOGIN_BYTES_MAX: Final = 160 * 1024
LOGIN_ITEMS_MAX: Final = 8
# A client's largest message is a PUBLISH: what it gathers, and a payload.
GATHERED_BYTES_MAX: Final = 16 * MIB
# Its longest array or map has so many filters or ranges of offsets, or the cluster's topic groups where these are more.
# msgpack makes room for an array when it begins, and takes 1,024 of them within each other: 8 MiB.
USER_MESSAGE_ITEMS_MAX: Final = 1_024
# How long who is turned away has to take the words.
LINGER_S: Final = 2.0


class LoginClaim(NamedTuple):
    """Who a client says it is. `password`: that, or a token."""

    client_id: str
    user_name: str | None
    password: bytes | None


Opened = Callable[[Link], LinkUser | None]


class LoginGate(Protocol):
    """Who decides about logins."""

    def log_in(self, link: UserListenerLink, claim: LoginClaim) -> Awaitable[Opened]:
        """What takes the link once it is open. Raises AuthenticationError, UnavailableError."""
        ...


class UserListenerLink(Link):
    """The broker's side. `info` is what the client is told once it is let in ("groups": how many there are); `lost` is
    called at the end."""

    handshake_bytes_max: ClassVar[int] = LOGIN_BYTES_MAX
    handshake_items_max: ClassVar[int] = LOGIN_ITEMS_MAX

    def __init__(
        self,
        gate: LoginGate,
        info: dict[str, Any],
        payload_bytes_max: int,
        lost: Callable[[Link], None],
        beats: Beats = BEATS,
    ) -> None:
        super().__init__(b"", "", _nobody, beats)
        self._gate = gate
        self._payload_bytes_max = payload_bytes_max
        self._lost = lost
        self.info = info
        self._asked: asyncio.Task[None] | None = None

    def _messages(self) -> msgpack.Unpacker:
        items_max = max(USER_MESSAGE_ITEMS_MAX, int(self.info["groups"]))
        return unpacker(GATHERED_BYTES_MAX + self._payload_bytes_max, items_max)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._lost(self)

    def _shake(self, message: tuple[Any, ...]) -> None:
        if message[0] != LOGIN or self._asked is not None:
            raise PeerError("the handshake is out of order")
        _, version, client_id, user, secret = message
        if version != PROTOCOL_VERSION:
            self.turn_away(PeerError(f"this side speaks link protocol {PROTOCOL_VERSION}, not {version}: upgrade one"))
            return
        if self._timer is not None:
            self._timer.cancel()  # to verify a password may take longer, where many wait
        self.role, self.name = USER_ROLE, client_id
        self._asked = asyncio.get_running_loop().create_task(self._log_in(LoginClaim(client_id, user, secret)))

    async def _log_in(self, claim: LoginClaim) -> None:
        try:
            if claim.password is not None and not secrets_may_cross(self._transport):
                raise AuthenticationError(
                    "a password or token has crossed the network unencrypted: change it, and connect by TLS "
                    "(address='link:tls:HOST:PORT')"
                )
            self._opened = await self._gate.log_in(self, claim)
        except LexicastError as error:
            self.turn_away(error)
            return
        except BaseException:
            self.abort()
            raise
        if not self.closed:
            self.send((WELCOME, b"", dict(self.info)))
            self._open()
            if not self.closed:
                self._parse_anew(False)

    def turn_away(self, error: LexicastError) -> None:
        """Tell the client why, and end the link."""
        if self.closed:
            return
        self.send((TURNED_AWAY, f"{type(error).__name__}: {error}"))
        self.close()
        self._loop.call_later(LINGER_S, self.abort)


class UserDiallerLink(Link):
    """The client's side, of whoever `claim` says."""

    def __init__(self, claim: LoginClaim, opened: Opened, beats: Beats = BEATS) -> None:
        super().__init__(b"", "", opened, beats)
        self._claim = claim

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        client_id, user, secret = self._claim
        if secret is not None and not secrets_may_cross(transport):
            self._fail(
                UntrustedBrokerError(
                    "a password or token would cross the network unencrypted, and was not sent: connect by TLS "
                    "(address='link:tls:HOST:PORT'; the broker's mqtt.tls_port), or from the broker's own machine"
                )
            )
            return
        self.send_packed(LINK_PREFACE + self._pack((LOGIN, PROTOCOL_VERSION, client_id, user, secret)))

    def _shake(self, message: tuple[Any, ...]) -> None:
        if message[0] == TURNED_AWAY:
            raise remote_error(message[1])
        if message[0] != WELCOME:
            raise PeerError("the handshake is out of order")
        self.info = message[2]
        self._open()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ready.done() and self._failure is None:
            error = UnavailableError(
                "the connection was closed before anybody was let in: is it a port of lexicast's for MQTT, of this "
                "version, and of TLS as in the address?"
            )
        super().connection_lost(error)


def secrets_may_cross(transport: asyncio.BaseTransport | None) -> bool:
    """Whether a connection is encrypted, or leaves its machine nowhere."""
    if transport is None:
        return False
    if transport.get_extra_info("ssl_object") is not None:
        return True
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(peer, tuple):
        return isinstance(peer, str | bytes)  # a Unix-domain socket
    return is_same_machine(str(peer[0]), str(own[0]) if isinstance(own, tuple) else "")


def _nobody(_link: Link) -> None:
    return None
