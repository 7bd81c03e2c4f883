"""Addresses and networks, asked whether an address is among them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final


class Networks:
    """ "10.0.0.7", "10.0.0.0/8", "fd00::/8"; an IPv4 address that an IPv6 socket shows is IPv4."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises ValueError: one is neither."""
        self._networks = [ipaddress.ip_network(text, strict=False) for text in texts]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        found = ipaddress.ip_address(address.partition("%")[0])
        found = getattr(found, "ipv4_mapped", None) or found
        return any([found in network for network in self._networks])


NO_NETWORKS: Final = Networks(())


def wrong_networks(knob: str, texts: Sequence[str]) -> str:
    """What is wrong with a knob that names some; "" where nothing is."""
    try:
        Networks(texts)
    except ValueError as error:
        return f"{knob}: {error}: name addresses and networks, such as 10.0.0.0/8"
    return ""
