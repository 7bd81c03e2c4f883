"""Sessions that were asked for, but whose connection ended before their home had answered: given back.

The home may have given them to that connection, whose number it knows, and believes that they are served here. So it is
told until it has heard (`session_forgo`), and until then nothing is claimed of how far they have got: what this broker
has delivered they have not seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

from lexicast.cluster.errors import LexicastError

log = logging.getLogger(__name__)

AGAIN_S = 1.0


class ForgoneSessions:
    """See the module's docstring. `ask_home(method, client_id, *arguments)`: raises LexicastError, TimeoutError."""

    def __init__(self, ask_home: Callable[..., Awaitable[object]]) -> None:
        self._ask_home = ask_home
        # Client id -> the numbers of the connections, in ascending order, of which its home has not heard.
        self._connections: dict[str, list[int]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def forgo(self, client_id: str, connection: int) -> None:
        """This connection has asked for the session, and does not take it."""
        known = self._connections.get(client_id)
        if known is not None:
            known.append(connection)
            known.sort()
            return
        self._connections[client_id] = [connection]
        task = asyncio.get_running_loop().create_task(self._tell(client_id))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    @property
    def connections(self) -> Iterator[int]:
        """Those of which homes have not heard."""
        return chain.from_iterable(self._connections.values())

    async def _tell(self, client_id: str) -> None:
        known = self._connections[client_id]
        while known:
            first = known[0]
            try:
                await self._ask_home("session_forgo", client_id, first)
            except (LexicastError, TimeoutError) as error:
                log.debug("session %r is given back later: %s", client_id, error)
                await asyncio.sleep(AGAIN_S)
            else:
                known.remove(first)
        del self._connections[client_id]

    def close(self) -> None:
        """The homes find this broker gone."""
        for task in self._telling:
            task.cancel()
