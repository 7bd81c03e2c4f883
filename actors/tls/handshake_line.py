"""The line of TLS handshakes: who may shake hands now, who waits, who makes way. Pure.

asyncio tells of a connection when its handshake is done, so limits and timeouts that count connections miss those who
never finish one; and thousands who come at once are half a millisecond of CPU each. So a broker accepts sockets itself:

    waiting      accepted, unread: a descriptor and a place in its address's queue
    under way    at most `most` at a time, `most_each` of one address; the addresses that wait take turns

While somebody waits for a place that another one holds for longer than HURRY_S, that one makes way: the oldest of the
address that is full, or of the address that holds most where all places are taken. So who stalls delays others, by two
seconds a place, and never keeps them out; a slow link (some round trips) is not hurried.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

WAITING_MAX: Final = 4_096
WAITING_EACH_MAX: Final = 2_048
HURRY_S: Final = 2.0

K = TypeVar("K", bound=Hashable)


class HandshakeLine(Generic[K]):
    """See the module's docstring. Keys name sockets, `address` is a `back_off.party`; times are seconds of a monotonic
    clock."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        # By address, those whose turn it is first in front.
        self._waiting: OrderedDict[str, deque[K]] = OrderedDict()
        self._waiting_count = 0
        # By address, since when each is under way, the oldest in front.
        self._under_way: dict[str, OrderedDict[K, float]] = {}
        self._addresses: dict[K, str] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting_count

    @property
    def under_way(self) -> int:
        """How many shake hands."""
        return len(self._addresses) - self._waiting_count

    def __len__(self) -> int:
        """Both."""
        return len(self._addresses)

    @property
    def is_full(self) -> bool:
        """Whether no more should be accepted: what comes then waits in the kernel."""
        return self._waiting_count >= WAITING_MAX

    def arrive(self, key: K, address: str) -> bool:
        """Somebody has come. False: too many wait of that address, this one is to be closed."""
        queue = self._waiting.get(address)
        if queue is not None and len(queue) >= WAITING_EACH_MAX:
            return False
        if queue is None:
            queue = self._waiting[address] = deque()
        queue.append(key)
        self._waiting_count += 1
        self._addresses[key] = address
        return True

    def begin(self, now_s: float) -> K | None:
        """Who is to begin its handshake now; None: nobody may, or nobody waits."""
        if self.under_way >= self._most:
            return None
        address = next((each for each in self._waiting if self._held(each) < self._most_each), None)
        if address is None:
            return None
        queue = self._waiting[address]
        key = queue.popleft()
        self._waiting_count -= 1
        self._waiting.move_to_end(address)
        if not queue:
            del self._waiting[address]
        self._under_way.setdefault(address, OrderedDict())[key] = now_s
        return key

    def _held(self, address: str) -> int:
        """How many of this address are under way."""
        return len(self._under_way.get(address, ()))

    def end(self, key: K) -> None:
        """A handshake is done, or failed; or who waited has left. An unknown key changes nothing."""
        address = self._addresses.pop(key, None)
        if address is None:
            return
        held = self._under_way.get(address)
        if held is not None and key in held:
            del held[key]
            if not held:
                del self._under_way[address]
            return
        queue = self._waiting[address]
        queue.remove(key)
        self._waiting_count -= 1
        if not queue:
            del self._waiting[address]

    def making_way(self, now_s: float) -> list[K]:
        """Whose handshakes are to be ended (by `end`), since others wait for their places: one an address that is full,
        and one where all places are taken."""
        found: dict[K, None] = {}
        for address in self._waiting:
            held = self._under_way.get(address)
            if held is not None and len(held) >= self._most_each:
                self._oldest(held, now_s, found)
        if self._waiting and self.under_way >= self._most:
            self._oldest(max(self._under_way.values(), key=len), now_s, found)
        return list(found)

    def _oldest(self, held: OrderedDict[K, float], now_s: float, found: dict[K, None]) -> None:
        key, since_s = next(iter(held.items()))
        if now_s - since_s >= HURRY_S:
            found[key] = None
