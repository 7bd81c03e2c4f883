"""The messages on data links: between brokers and coordinators, and between Python clients and brokers.

Each message is one msgpack array `(KIND, ...)`; a link is a stream of them (`lexicast.actors.link`). Publications
travel as *entries* and blocks, columns for whole batches (`cluster.blocks`), never one message at a time.

    PUBLISH   tag, entries                client -> broker -> coordinator; an entry is (group, meta, lengths, body):
                                          a block that has no offsets yet. One ACK a PUBLISH; tags ascend
    ACK       tag, results                one result an entry, in order: runs of (count, epoch, first offset) once
                                          committed (QoS 0 entries: once stored or sequenced), or a refusal (text)
    TAKEN     tag                         coordinator -> broker: the PUBLISH is sequenced; its ACK follows the commit
    DELIVER   stream, blocks              coordinator -> broker (stream 0) -> client (stream = its subscription);
                                          blocks as `Block.to_wire`, in offset order within a group
    HEADS     {group: (epoch, next)}      coordinator -> broker: every record before `next` that concerns this broker
                                          has been delivered on this link
    REQUEST   id, method, arguments       either direction; answered by one REPLY
    REPLY     id, error or None, result
    DICTIONARY  packed dictionary         broker -> client: a new dictionary of a family

Handshake (before anything else), mutual, with the cluster's key, so that neither side serves a stranger:

    CHALLENGE nonce, cluster id, version  listener -> dialler
    HELLO     nonce, role, name, incarnation, proof
    WELCOME   proof, info                 listener -> dialler
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

PROTOCOL_VERSION: Final = 1

PUBLISH: Final = 1
ACK: Final = 2
DELIVER: Final = 3
HEADS: Final = 4
REQUEST: Final = 5
REPLY: Final = 6
DICTIONARY: Final = 7
TAKEN: Final = 8
CHALLENGE: Final = 16
HELLO: Final = 17
WELCOME: Final = 18

NONCE_BYTES: Final = 32


def proof(key: bytes, side: str, listener_nonce: bytes, dialler_nonce: bytes) -> bytes:
    """What a holder of the cluster's key answers to the two nonces; `side` keeps the two directions apart."""
    return hmac.new(key, side.encode() + listener_nonce + dialler_nonce, hashlib.sha256).digest()
