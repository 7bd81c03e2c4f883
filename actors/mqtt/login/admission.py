"""Who may open an MQTT connection without having proved who they are: the address decides.

mqtt.allow_anonymous   "loopback"  the machine itself     "always"  everybody     "never"  nobody
                       "auto"      "never" where there are users, else "loopback"
mqtt.credentials       "refuse"    who sends a user name or password is told that they are not checked here
                       "ignore"    they are not looked at: what allow_anonymous says holds
"""

from __future__ import annotations

from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.addresses import is_loopback, is_same_machine

from ..codec.packets import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SUCCESS, Connect


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


def is_open_to_strangers(config: Config) -> bool:
    """Whether whoever reaches a broker with this configuration from another machine publishes and reads everything."""
    if config.anonymous != "always" or config.security.acl_file:
        return False
    own = config.mqtt.host or config.node.host
    certified = config.tls.client_certificates == "required"
    more = [each.host or own for each in config.mqtt.more_ports() if not (each.is_encrypted and certified)]
    hosts = [own, *more]
    return not all([is_loopback(host) for host in hosts])


def is_encrypted_console(config: Config) -> bool:
    """Whether what operators look at is to be encrypted."""
    return config.http.tls == "always" or not is_loopback(config.http.host)
