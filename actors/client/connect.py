"""`lexicast.connect`: from an address to a client."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from lexicast.cluster.errors import UnavailableError

from ..link.credentials import Secret, Tls, credentials
from .address import resolver
from .client import Client
from .publisher import BATCH_BYTES

# Of an actor of the cluster: brokers start at the same time.
BROKER_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.2


def connect(
    address: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    user: str | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    tls: Tls | None = None,
    client_id: str | None = None,
    compress: bool = True,
    give_up_s: float | None = None,
    key: bytes | None = None,
    batch_s: float = 0.0,
    batch_bytes: int = BATCH_BYTES,
) -> Client:
    """A client of the cluster at `address`, to be entered: `async with lexicast.connect() as bus:`.

    `address` None: the environment's LEXICAST_ADDRESS, else the cluster that `lexicast up` runs on `data_dir` (None:
    the user's data folder); "auto", "HOST:PORT" or "ray://HOST:PORT": the cluster in that Ray; "link:unix:PATH" or
    "link:tcp:HOST:PORT": one broker's link, with the cluster's `key`. All of these are an operator's, who may do
    everything.

    Who has no key logs in at a port of MQTT: "link:tls:HOST:PORT", or on the broker's own machine "link:tcp:HOST:PORT"
    (None: 127.0.0.1:1883), with `user` and `password`, with `token`, or with a certificate in `tls`; without any of
    these where the cluster lets in who has not logged in. `password` and `token` are texts, or functions that give
    them, asked for each connection. `tls`: a file of the certificates that are trusted (None: the system's), or an
    ssl.SSLContext. Where none of these is given the environment may give them: LEXICAST_USER, LEXICAST_PASSWORD_FILE,
    LEXICAST_TOKEN_FILE, LEXICAST_CA_FILE. What the cluster's rules do not allow raises NotAuthorizedError where it is
    asked for; a login that is refused, also later, AuthenticationError.

    `client_id` names the publisher in messages (None: a random name). `compress`: publish with the dictionaries that
    the cluster has learned (received messages are decompressed in any case). `give_up_s`: after so many seconds
    without a broker, or without an acknowledgement or an answer, what waits fails with UnavailableError; None: wait for
    ever. The first connection is not waited for: entering raises UnavailableError, AuthenticationError or PeerError at
    once.

    `batch_s` > 0: what is published waits up to so many seconds, or until it has `batch_bytes`, and what belongs to one
    topic group crosses a TCP link compressed as one; for links on which bytes count more than time.

    Raises UsageError for an address, a login or bounds that are none.
    """
    return Client(
        resolver(address, data_dir, key, credentials(user, password, token, tls)),
        client_id=client_id,
        compress=compress,
        give_up_s=give_up_s,
        batch_s=batch_s,
        batch_bytes=batch_bytes,
    )


async def connect_actor(client_id: str, compress: bool = True) -> Client:
    """A client, open, of the cluster that this process is an actor of, as soon as a broker serves. Raises
    TimeoutError."""
    async with asyncio.timeout(BROKER_TIMEOUT_S):
        while True:
            client = Client(resolver("auto", None, None), client_id=client_id, compress=compress)
            try:
                return await client.open()
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
