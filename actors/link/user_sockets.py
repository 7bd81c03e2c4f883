"""Dialling a broker as a user: at a port of MQTT, over TCP or TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from lexicast.cluster.errors import UnavailableError, UntrustedBrokerError

from .link import Link
from .user_handshake import LoginClaim, Opened, UserDiallerLink

TCP: Final = "tcp:"
TLS: Final = "tls:"
# A password may have to wait for others to be verified.
LOGIN_TIMEOUT_S: Final = 30.0


async def dial_as_user(
    address: str, claim: LoginClaim, context: Callable[[], ssl.SSLContext], opened: Opened, timeout_s: float
) -> Link:
    """Open a link to `address`, "tcp:HOST:PORT" or "tls:HOST:PORT". `timeout_s`: for the connection; the login has
    longer.

    Raises OSError (TimeoutError), AuthenticationError (the broker refuses), UntrustedBrokerError (it was told nothing),
    UnavailableError, PeerError, ConfigError.
    """
    encrypted = address.startswith(TLS)
    host, _, port = address[len(TLS) :].rpartition(":")
    host = host.strip("[]")
    loop = asyncio.get_running_loop()
    shown = context() if encrypted else None
    try:
        async with asyncio.timeout(timeout_s):
            _, link = await loop.create_connection(
                lambda: UserDiallerLink(claim, opened),
                host,
                int(port),
                ssl=shown,
                server_hostname=host if encrypted else None,
            )
    except TimeoutError:
        raise TimeoutError(f"{address} has not answered within {timeout_s:.1f} s") from None
    except ssl.SSLCertVerificationError as error:
        raise UntrustedBrokerError(
            f"{address} shows a certificate that nobody vouches for ({error.verify_message}): give tls='CA_FILE', "
            "whose certificates are trusted, and the name that stands in the broker's"
        ) from None
    except ssl.SSLError as error:
        raise UnavailableError(f"{address} speaks no TLS that this side does ({error.reason or error})") from None
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT_S):
            return await link.wait_open()
    except TimeoutError:
        link.abort()
        raise TimeoutError(f"{address} has not answered a login within {LOGIN_TIMEOUT_S:.0f} s") from None
    except BaseException:
        link.abort()
        raise
