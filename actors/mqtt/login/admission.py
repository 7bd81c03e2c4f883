"""Who may open an MQTT connection without having proved who they are: the address decides.

mqtt.allow_anonymous   "loopback"  the machine itself     "always"  everybody     "never"  nobody
                       "auto"      "never" where there are users, else "loopback"
mqtt.credentials       "refuse"    who sends a user name or password is told that they are not checked here
                       "ignore"    they are not looked at: what allow_anonymous says holds
"""

from __future__ import annotations

from typing import Protocol

from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.addresses import is_loopback, is_open_to_strangers, is_same_machine

from ..codec.packets import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SUCCESS


class Claim(Protocol):
    """Who a client says it is: a CONNECT, or a Python client's login."""

    @property
    def client_id(self) -> str:
        """Its name."""

    @property
    def user_name(self) -> str | None:
        """None: it says none."""

    @property
    def password(self) -> bytes | None:
        """That, or a token; None: it has none."""


def admission(config: Config, connect: Claim, peer: str, own: str) -> int:
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


def lets_strangers_in(config: Config) -> bool:
    """Whether whoever reaches a broker with this configuration from another machine publishes and reads everything."""
    own = config.mqtt.host or config.node.host
    more = [(each.host or own, each.is_encrypted) for each in config.mqtt.more_ports()]
    return is_open_to_strangers(config, [(own, False), *more])


def is_encrypted_console(config: Config) -> bool:
    """Whether what operators look at is to be encrypted."""
    return config.http.tls == "always" or not is_loopback(config.http.host)
