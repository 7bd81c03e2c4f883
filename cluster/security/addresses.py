"""Whose addresses these are: the machine's own, or anybody's. Pure.

A client on this machine need not come from 127.0.0.1: to a broker that listens at the machine's address in the network
it comes from that same address, and nobody else's packets do, since the answers to them stay here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from ..config.tables import Config

# One for most of a proxy's clients, or this machine's.
ADDRESSES_REMEMBERED = 256

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_same_machine(peer: str, own: str) -> bool:
    """Whether a TCP connection's both ends are on this machine."""
    if not peer:
        return False
    address = _address(peer)
    return address.is_loopback or (bool(own) and address == _address(own))


def is_loopback(host: str) -> bool:
    """Whether `host` is reached from its own machine alone."""
    try:
        return _address(host).is_loopback
    except ValueError:  # a name, which may be anybody's
        return host == "localhost"


def is_open_to_strangers(config: Config, reached: Iterable[tuple[str, bool]]) -> bool:
    """Whether whoever reaches brokers from another machine publishes and reads everything: nobody need log in, and no
    rules say what is theirs. `reached`: (host, whether it is by TLS) of each port of MQTT."""
    if config.anonymous != "always" or config.security.acl_file:
        return False
    certified = config.tls.client_certificates == "required"
    return not all([is_loopback(host) for host, is_encrypted in reached if not (is_encrypted and certified)])


@lru_cache(ADDRESSES_REMEMBERED)
def _address(text: str) -> IPAddress:
    """`text` as an address; an IPv4 one that an IPv6 socket shows is IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
