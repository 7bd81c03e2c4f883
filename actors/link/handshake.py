"""The handshake of a link, and its two sides: the listener speaks first, both prove that they hold the cluster's key.

See `cluster.protocol.messages` for what is said, `cluster.protocol.link_proofs` for what the proofs cover. Whether the
link is encrypted the listener says in its OFFER; both proofs cover that, so nobody between the two can talk them out of
it. From HELLO on (the dialler) and from WELCOME on (the listener) every byte is in sealed records
(`cluster.protocol.sealed_records`): WELCOME is the first of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, ClassVar, Final

from lexicast.cluster.errors import AuthenticationError, PeerError
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.protocol.key_agreement import PRIVATE_BYTES, KeyAgreement
from lexicast.cluster.protocol.link_proofs import DIALLER, LISTENER, is_proof, proof
from lexicast.cluster.protocol.messages import CHALLENGE, HELLO, NONCE_BYTES, OFFER, PROTOCOL_VERSION, WELCOME

from .link import BEATS, Link, LinkUser

# A HELLO has seven fields, one of them a map of a few. msgpack makes room for an array when it begins, and takes 1,024
# of them within each other: less than 256 KiB, of strangers.
HELLO_ITEMS_MAX: Final = 16

OUT_OF_ORDER: Final = "the handshake is out of order"


class ListenerLink(Link):
    """The side that was dialled; it tells the other `info`. `encrypted`: nobody is let in on a plain link."""

    handshake_items_max: ClassVar[int] = HELLO_ITEMS_MAX

    def __init__(
        self,
        key: bytes,
        cluster_id: str,
        opened: Callable[[Link], LinkUser | None],
        info: dict[str, Any],
        beats: Beats = BEATS,
        encrypted: bool = False,
    ) -> None:
        super().__init__(key, cluster_id, opened, beats)
        self.info = info
        self._agreement = KeyAgreement(os.urandom(PRIVATE_BYTES)) if encrypted else None
        self._shaken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        challenge = (CHALLENGE, self._nonce, self._cluster_id, PROTOCOL_VERSION)
        offer: tuple[Any, ...] = (OFFER, {} if self._agreement is None else {"public": self._agreement.public})
        self._heard.add(*challenge)
        self._heard.add(*offer)
        self.send_packed(self._pack(challenge) + self._pack(offer))

    def _shake(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind != HELLO or self._shaken or len(message[1]) != NONCE_BYTES:
            raise PeerError(OUT_OF_ORDER)
        _, nonce, role, name, incarnation, who, answer = message
        self._shaken = True
        self._heard.add(HELLO, nonce, role, name, incarnation, who)
        if not is_proof(answer, self._key, DIALLER, self._heard):
            raise AuthenticationError("a peer does not hold this cluster's key")
        self.role, self.name, self.incarnation = role, name, incarnation
        if self._agreement is not None:
            if "public" not in who:
                raise PeerError(f"{name} does not encrypt, and links from other machines have to be (security.links)")
            self._sealer, self._opener = self._agreement.listener(who.get("public"), self._key, self._heard)
        info = dict(self.info)
        self._heard.add(WELCOME, info)
        self.send((WELCOME, proof(self._key, LISTENER, self._heard), info))
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
        self._awaited = CHALLENGE

    def _shake(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind != self._awaited:
            raise PeerError(OUT_OF_ORDER)
        if kind == CHALLENGE:
            self._challenged(message)
        elif kind == OFFER:
            self._offered(message)
        else:
            self._welcomed(message)

    def _challenged(self, message: tuple[Any, ...]) -> None:
        _, _, cluster_id, version = message
        if version != PROTOCOL_VERSION:
            raise PeerError(
                f"the peer speaks link protocol {version}, this side {PROTOCOL_VERSION}: upgrade one, all nodes and "
                "Python clients need the same version of lexicast"
            )
        if self._cluster_id and cluster_id != self._cluster_id:
            raise PeerError(f"the address belongs to another cluster ({cluster_id})")
        self._heard.add(*message)
        self._awaited = OFFER

    def _offered(self, message: tuple[Any, ...]) -> None:
        offer: dict[str, Any] = message[1]
        self._heard.add(*message)
        encrypted = "public" in offer
        agreement = KeyAgreement(os.urandom(PRIVATE_BYTES)) if encrypted else None
        who = {} if agreement is None else {"public": agreement.public}
        hello = (HELLO, self._nonce, *self._hello, who)
        self._heard.add(*hello)
        self.send((*hello, proof(self._key, DIALLER, self._heard)))
        if agreement is not None:
            self._sealer, self._opener = agreement.dialler(offer["public"], self._key, self._heard)
        self._awaited = WELCOME

    def _welcomed(self, message: tuple[Any, ...]) -> None:
        _, answer, info = message
        self._heard.add(WELCOME, info)
        if not is_proof(answer, self._key, LISTENER, self._heard):
            raise AuthenticationError("the address is held by a process without this cluster's key")
        self.info = info
        self._awaited = 0  # nothing more
        self._open()
