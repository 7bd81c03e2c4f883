"""The brokers of a cluster, as one of them tells its Python clients (the request "brokers"): where they may go when it
is gone. Pure.

Of each its TCP addresses only: a path is of no use on another machine, and none is taken from a link. Of a large
cluster a part is told, each broker another one, so that its clients are spread; the backups are always among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..errors import PeerError
from ..membership import Member, Members
from ..security.addresses import is_loopback
from .shapes import each, mapping, row

# Some 4 KB.
BROKERS_TOLD_MAX: Final = 64
# A host's name has 253 characters at most.
ADDRESS_CHARACTERS_MAX: Final = 300
NAME_CHARACTERS_MAX: Final = 200
TCP: Final = "tcp:"
TLS: Final = "tls:"
# What the resolver is asked without an error of its own: labels of 1 to 63 characters, or a number with colons.
_TCP_ADDRESS: Final = re.compile(r"(?:tcp|tls):(?:[\w:%-]{1,63}\.)*[\w:%-]{1,63}\.?:([0-9]{1,5})", re.ASCII)


class BrokerList(NamedTuple):
    """`addresses`: of each broker; `backups`: of the one that tells it, the local one first (REAPS, section III)."""

    addresses: dict[str, tuple[str, ...]]
    backups: tuple[str, ...]


def standing_in(members: Members, broker: str) -> list[Member]:
    """The brokers that stay, those that stand in for `broker` first."""
    names = dict.fromkeys([*members.backups.get(broker, ()), *members.brokers])
    found = [members.brokers[name] for name in names if name in members.brokers]
    return [member for member in found if member.node not in members.leaving]


def broker_list(members: Members, broker: str) -> BrokerList:
    """What `broker` tells."""
    stay = {m.name: tuple([a for a in m.addresses if a.startswith(TCP)]) for m in standing_in(members, broker)}
    backups = tuple([name for name in members.backups.get(broker, ()) if name in stay])

    def order(name: str) -> tuple[bool, bytes]:
        return name not in backups and name != broker, blake2b(f"{broker}/{name}".encode(), digest_size=8).digest()

    return BrokerList({name: stay[name] for name in sorted(stay, key=order)[:BROKERS_TOLD_MAX]}, backups)


def brokers_of_users(hosts: Iterable[str], port: int, encrypted: bool) -> BrokerList:
    """What is told to those who have come to a port of MQTT: all brokers of a node share one, on every node the same.
    `hosts`: the nodes' addresses, those first that stand in; this machine's own name is nobody else's."""
    found = [f"{host}:{port}" for host in hosts if not is_loopback(host)][:BROKERS_TOLD_MAX]
    return BrokerList({each: ((TLS if encrypted else TCP) + each,) for each in found}, ())


def _name(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= NAME_CHARACTERS_MAX


def is_address(value: Any) -> bool:
    """Whether it names a host and a port, "tcp:HOST:PORT" or "tls:HOST:PORT", that may be dialled."""
    if type(value) is not str or len(value) > ADDRESS_CHARACTERS_MAX:
        return False
    found = _TCP_ADDRESS.fullmatch(value)
    return found is not None and 0 < int(found[1]) < 65_536


_LIST: Final = row(mapping(_name, each(is_address)), each(_name))


def read_broker_list(value: Any) -> BrokerList:
    """A list as it came over a link. Raises PeerError."""
    if not _LIST(value):
        raise PeerError(f"a list of brokers cannot be read: {value!r:.80}")
    told = BrokerList(*value)
    if len(told.addresses) > BROKERS_TOLD_MAX or len(told.backups) > BROKERS_TOLD_MAX:
        raise PeerError(f"a list of {len(told.addresses):,} brokers: {BROKERS_TOLD_MAX} are told at the most")
    return told
