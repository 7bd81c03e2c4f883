"""Who may open an MQTT connection without having proved who they are: the address decides.

    mqtt.allow_anonymous   "loopback"  the machine itself     "always"  everybody     "never"  nobody
                           "auto"      "never" where there are users, else "loopback"
    mqtt.credentials       "refuse"    who sends a user name or password is told that they are not checked here
                           "ignore"    they are not looked at: what allow_anonymous says holds

A client on this machine need not come from 127.0.0.1: to a broker that listens at the machine's address in the network
it comes from that same address, and nobody else's packets do, since the answers to them stay here.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TypeAlias

from lexicast.cluster.config.tables import Config

from ..codec.packets import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SUCCESS, Connect

# One for most of a proxy's clients, or this machine's.
ADDRESSES_REMEMBERED = 256

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def admission(config: Config, connect: Connect, peer: str, own: str) -> int:
    """SUCCESS, or the reason code with which `connect` is refused (v5; 3.1.1's return codes 4 and 5 follow from it).

    `peer`, `own`: the IP addresses of the connection's two ends; "" where one is not known.
    """
    named = connect.user_name is not None or connect.password is not None
    if named and config.mqtt.credentials == "refuse":
        return BAD_USER_NAME_OR_PASSWORD  # [MQTT-3.1.4-2]
    if config.anonymous == "always":
        return SUCCESS
    near = config.anonymous == "loopback" and is_same_machine(peer, own)
    return SUCCESS if near else NOT_AUTHORIZED


def is_same_machine(peer: str, own: str) -> bool:
    """Whether a TCP connection's both ends are on this machine."""
    if not peer:
        return False
    address = _address(peer)
    return address.is_loopback or (bool(own) and address == _address(own))


def is_open_to_strangers(config: Config) -> bool:
    """Whether whoever reaches a broker with this configuration from another machine publishes and reads everything."""
    if config.anonymous != "always" or config.security.acl_file:
        return False
    own = config.mqtt.host or config.node.host
    certified = config.tls.client_certificates == "required"
    more = [each.host or own for each in config.mqtt.more_ports() if not (each.is_encrypted and certified)]
    hosts = [own, *more]
    return not all([is_loopback(host) for host in hosts])


def is_loopback(host: str) -> bool:
    """Whether `host` is reached from its own machine alone."""
    try:
        return _address(host).is_loopback
    except ValueError:  # a name, which may be anybody's
        return host == "localhost"


@lru_cache(ADDRESSES_REMEMBERED)
def _address(text: str) -> IPAddress:
    """`text` as an address; an IPv4 one that an IPv6 socket shows is IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
