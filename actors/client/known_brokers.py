"""The brokers that a client knows: found at the address that it was given, and told by those it was connected to.

What is told adds to what was found: the address of one broker is enough for a client to outlive it. Of a broker that is
known both ways Unix-domain sockets come first, then what was told, which is newer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from lexicast.cluster.protocol.broker_list import BrokerList

from ..link.call_link import BrokerCalls
from ..link.credentials import Credentials


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One broker. `addresses` are link addresses; `calls` reaches it through Ray; `handle` is its raw actor handle;
    `login`: how a user gets in."""

    name: str
    addresses: tuple[str, ...]
    cluster_id: str
    key: bytes = field(repr=False)
    calls: BrokerCalls | None = None
    handle: Any = None
    # Of a user, who has no key.
    login: Credentials | None = None

    def is_local(self) -> bool:
        """Whether one of its Unix-domain sockets is here."""
        return any(a.startswith("unix:") and Path(a[5:]).exists() for a in self.addresses)


Resolve: TypeAlias = Callable[[], Awaitable[list[Endpoint]]]


class KnownBrokers:
    """See the module's docstring. `endpoints`: all of them, by name; `backups`: who stands in for the one that told
    last, the local one first."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._found: dict[str, Endpoint] = {}
        self._told: dict[str, Endpoint] = {}
        self.endpoints: Mapping[str, Endpoint] = {}
        self.backups: tuple[str, ...] = ()

    async def find(self) -> None:
        """Look at the address again. Raises what that raises; what was known stays then."""
        self._found = {endpoint.name: endpoint for endpoint in await self._resolve()}
        self._merge()

    def told(self, brokers: BrokerList, by: Endpoint, name: str) -> None:
        """`by`, which calls itself `name`, has told which brokers there are. (An endpoint that was given by its address
        has that for a name.)"""
        names = {name: by.name}
        self._told = {}
        for each, addresses in brokers.addresses.items():
            known = names.get(each, each)
            self._told[known] = Endpoint(known, addresses, by.cluster_id, by.key, login=by.login)
        self.backups = tuple([names.get(each, each) for each in brokers.backups])
        self._merge()

    def was_given(self, name: str) -> bool:
        """Whether it was found at the address that the client was given; others were told of."""
        return name in self._found

    def forget_backups(self) -> None:
        """Another broker serves now: it has not told yet who stands in for it."""
        self.backups = ()

    def _merge(self) -> None:
        merged = {**self._told, **self._found}
        for name in self._told.keys() & self._found.keys():
            addresses = (*self._told[name].addresses, *self._found[name].addresses)
            order = sorted(dict.fromkeys(addresses), key=lambda address: not address.startswith("unix:"))
            merged[name] = replace(self._found[name], addresses=tuple(order))
        self.endpoints = merged
