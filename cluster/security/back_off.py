"""Who guesses has to wait: by user and address, and by address. Pure.

A pair of an address and a user's name may fail PAIR_FREE times, then it waits, twice as long after each further
failure. An address may fail ADDRESS_FREE times whatever the names, and never waits for long: many devices may share it,
and one of them whose password is wrong is held up by its own pair before the others notice. A failure is forgotten
after FORGET_S, a success forgets the pair's. Who is held up is not asked for what it knows, so nothing is hashed for
it.

Memory: ENTRIES_MAX entries, the longest untouched go first. An IPv6 address counts by its network of 64 bits, which one
subscriber has for itself (RFC 6177).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache
from typing import Final, TypeAlias

PAIR_FREE: Final = 3
PAIR_FIRST_S: Final = 1.0
PAIR_MOST_S: Final = 60.0
ADDRESS_FREE: Final = 30
ADDRESS_FIRST_S: Final = 0.25
ADDRESS_MOST_S: Final = 5.0
FORGET_S: Final = 120.0
ENTRIES_MAX: Final = 20_000
# Addresses whose party is remembered: each connection asks for its own twice and more, and to read one takes 3 us.
PARTIES_REMEMBERED: Final = 4_096

_Key: TypeAlias = tuple[str, str]


class BackOff:
    """See the module's docstring. Times are monotonic seconds."""

    def __init__(self) -> None:
        # (address, user), or (address, "") of the address -> failures, the last one, and until when it has to wait.
        self._failures: OrderedDict[_Key, tuple[int, float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Entries."""
        return len(self._failures)

    def wait_s(self, address: str, user: str, now_s: float) -> float:
        """How long it has to wait; 0: it may try."""
        network = party(address)
        until_s = max([self._known(key, now_s)[2] for key in ((network, user), (network, ""))])
        return max(0.0, until_s - now_s)

    def failed(self, address: str, user: str, now_s: float) -> None:
        """A name and a password that do not go together."""
        network = party(address)
        if user:
            self._count((network, user), now_s, PAIR_FREE, PAIR_FIRST_S, PAIR_MOST_S)
        self._count((network, ""), now_s, ADDRESS_FREE, ADDRESS_FIRST_S, ADDRESS_MOST_S)

    def succeeded(self, address: str, user: str) -> None:
        """They do."""
        self._failures.pop((party(address), user), None)

    def _known(self, key: _Key, now_s: float) -> tuple[int, float, float]:
        known = self._failures.get(key)
        if known is None or now_s - known[1] > FORGET_S:
            return 0, now_s, 0.0
        return known

    def _count(self, key: _Key, now_s: float, free: int, first_s: float, most_s: float) -> None:
        failures = self._known(key, now_s)[0] + 1
        over = failures - free
        wait_s = min(first_s * 2.0 ** min(over - 1, 30), most_s) if over > 0 else 0.0
        self._failures[key] = failures, now_s, now_s + wait_s
        self._failures.move_to_end(key)
        while len(self._failures) > ENTRIES_MAX:
            self._failures.popitem(last=False)


@lru_cache(PARTIES_REMEMBERED)
def party(address: str) -> str:
    """Whose address it is: of IPv6 the network of 64 bits, of which one customer has all."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
