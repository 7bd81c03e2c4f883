"""The handshake of a link, and its two sides: the listener speaks first, both prove that they hold the cluster's key.

See `cluster.protocol.messages` for what is said.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

from lexicast.cluster.errors import AuthenticationError, PeerError
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.messages import CHALLENGE, HELLO, NONCE_BYTES, PROTOCOL_VERSION, WELCOME, proof

from .link import BEATS, Link, LinkUser


class ListenerLink(Link):
    """The side that was dialled; it tells the other `info`."""

    def __init__(
        self,
        key: bytes,
        cluster_id: str,
        opened: Callable[[Link], LinkUser | None],
        info: dict[str, Any],
        beats: Beats = BEATS,
    ) -> None:
        super().__init__(key, cluster_id, opened, beats)
        self.info = info

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send((CHALLENGE, self._nonce, self._cluster_id, PROTOCOL_VERSION))

    def _shake(self, message: tuple[Any, ...]) -> None:
        kind, nonce, role, name, incarnation, answer = message
        if kind != HELLO or len(nonce) != NONCE_BYTES:
            raise PeerError("the handshake is out of order")
        if not hmac.compare_digest(answer, proof(self._key, "dialler", self._nonce, nonce)):
            raise AuthenticationError("a peer does not hold this cluster's key")
        self.role, self.name, self.incarnation = role, name, incarnation
        info = dict(self.info)
        self.send((WELCOME, proof(self._key, "listener", self._nonce, nonce), info))
        self._open()


class DiallerLink(Link):
    """The side that dials, as `hello` = (role, name, incarnation)."""

    def __init__(
        self,
        key: bytes,
        cluster_id: str,
        hello: tuple[str, str, int],
        opened: Callable[[Link], LinkUser | None],
        beats: Beats = BEATS,
    ) -> None:
        super().__init__(key, cluster_id, opened, beats)
        self._hello = hello
        self._peer_nonce = b""

    def _shake(self, message: tuple[Any, ...]) -> None:
        if message[0] == CHALLENGE:
            _, self._peer_nonce, cluster_id, version = message
            if version != PROTOCOL_VERSION:
                raise PeerError(f"the peer speaks link protocol {version}, this side {PROTOCOL_VERSION}: upgrade one")
            if self._cluster_id and cluster_id != self._cluster_id:
                raise PeerError(f"the address belongs to another cluster ({cluster_id})")
            self.send((HELLO, self._nonce, *self._hello, proof(self._key, "dialler", self._peer_nonce, self._nonce)))
            return
        kind, answer, info = message
        if kind != WELCOME or not hmac.compare_digest(
            answer, proof(self._key, "listener", self._peer_nonce, self._nonce)
        ):
            raise AuthenticationError("the address is held by a process without this cluster's key")
        self.info = info
        self._open()
