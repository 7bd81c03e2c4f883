"""A broker asked over a link, without a client: one request, its answer. It loads neither Ray nor the codecs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, NotAuthorizedError, UnavailableError, UsageError

from ..client.known_brokers import Endpoint
from ..link.link import Link
from ..link.sockets import dial

ROLE: Final = "asking"
DIAL_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 10.0


class _Asker:
    """A link's user that takes nothing but answers."""

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Dictionaries are announced to every client."""

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The request has failed then."""

    def on_writable(self, link: Link) -> None:
        """One request always fits."""


async def ask_any_broker(endpoints: Sequence[Endpoint], method: str, *arguments: Any) -> Any:
    """The answer of the first of the brokers that gives one, those on this machine first.

    Raises UnavailableError; UsageError when what is asked for cannot be, NotAuthorizedError where there is no key.
    """
    failures = []
    for endpoint in sorted(endpoints, key=lambda endpoint: not endpoint.is_local()):
        try:
            return await ask_broker(endpoint, method, *arguments)
        except (UsageError, NotAuthorizedError):
            raise  # another broker would say the same
        except (LexicastError, OSError) as error:
            failures.append(f"{endpoint.name}: {error}")
    raise UnavailableError(f"no broker answers ({'; '.join(failures) or 'none is known'})")


async def ask_broker(endpoint: Endpoint, method: str, *arguments: Any) -> Any:
    """One broker's answer. Raises LexicastError, OSError."""
    link = await dial_broker(endpoint)
    try:
        return await link.request(method, *arguments, timeout_s=ANSWER_TIMEOUT_S)
    finally:
        link.close()
        await asyncio.sleep(0)  # what was closed is gone before its event loop is


async def dial_broker(endpoint: Endpoint) -> Link:
    """A link to a broker, for questions alone. Raises LexicastError, OSError."""
    if endpoint.login is not None:
        raise NotAuthorizedError.for_operators("this command")
    hello = (ROLE, secrets.token_hex(4), 0)
    last: Exception = UnavailableError("it has no address")
    for address in endpoint.addresses:
        try:
            return await dial(
                address, endpoint.key, endpoint.cluster_id, hello, lambda _: _Asker(), timeout_s=DIAL_TIMEOUT_S
            )
        except (LexicastError, OSError) as error:
            last = error
    raise last
