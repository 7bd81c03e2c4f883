"""`lexicast.connect`: from an address to a client."""

from __future__ import annotations

import os

from .address import resolver
from .client import Client
from .publisher import BATCH_BYTES


def connect(
    address: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
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
    "link:tcp:HOST:PORT": one broker's link, with the cluster's `key`.

    `client_id` names the publisher in messages (None: a random name). `compress`: publish with the dictionaries that
    the cluster has learned (received messages are decompressed in any case). `give_up_s`: after so many seconds
    without a broker, or without an acknowledgement or an answer, what waits fails with UnavailableError; None: wait for
    ever. The first connection is not waited for: entering raises UnavailableError, AuthenticationError or PeerError at
    once.

    `batch_s` > 0: what is published waits up to so many seconds, or until it has `batch_bytes`, and what belongs to one
    topic group crosses a TCP link compressed as one; for links on which bytes count more than time.

    Raises UsageError for an address or bounds that are none.
    """
    return Client(
        resolver(address, data_dir, key),
        client_id=client_id,
        compress=compress,
        give_up_s=give_up_s,
        batch_s=batch_s,
        batch_bytes=batch_bytes,
    )
