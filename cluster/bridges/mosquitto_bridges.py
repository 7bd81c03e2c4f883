"""The bridges of a mosquitto.conf as a `bridges.toml`, and what of them cannot be carried over (mosquitto.conf(5),
Configuring Bridges).

A line that belongs to no bridge has no part here (`security.mosquitto_conf`); of those that do each one is carried
over, or told.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import ConfigError
from ..security.mosquitto_conf import CONF_BYTES_MAX, NotCarried
from .definitions import BOTH, DIRECTIONS, IN, OUT, BridgedTopic
from .topic_map import overlap

_PROTOCOLS: Final = {"mqttv50": "5", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}
# Mosquitto's word, ours, and the type.
_PLAIN: Final[dict[str, tuple[str, type]]] = {
    "remote_username": ("user", str),
    "username": ("user", str),
    "remote_clientid": ("client_id", str),
    "clientid": ("client_id", str),
    "keepalive_interval": ("keep_alive_s", int),
    "bridge_cafile": ("ca", str),
    "bridge_certfile": ("certificate", str),
    "bridge_keyfile": ("key", str),
    "bridge_receive_maximum": ("receive_max", int),
    "bridge_session_expiry_interval": ("session_expiry_s", int),
}
_FLAGS: Final = {"cleansession": ("clean_start", False), "bridge_insecure": ("verify_host", True)}
# Nothing is lost with these.
_NEEDLESS: Final = (
    "bridge_attempt_unsubscribe",
    "bridge_max_topic_alias",
    "bridge_outgoing_retain",
    "bridge_reload_type",
    "local_cleansession",
    "local_clientid",
    "local_username",
    "local_password",
    "max_queued_",
)
_WHY: Final = {
    "remote_password": "put it into a file of its own, and name that as password_file",
    "password": "put it into a file of its own, and name that as password_file",
    "bridge_capath": "put its certificates into one file, and name that as ca",
    "bridge_identity": "there are no pre-shared keys",
    "bridge_psk": "there are no pre-shared keys",
    "bridge_alpn": "there is none",
    "bridge_tls_version": "OpenSSL chooses it",
    "bridge_require_ocsp": "it is not asked for",
    "bridge_bind_address": "the system chooses it",
    "bridge_max_packet_size": "the other broker's limit is kept, of MQTT 5; set its own",
    "bridge_tcp_keepalive": "keep_alive_s finds a dead connection",
    "bridge_tcp_user_timeout": "keep_alive_s finds a dead connection",
    "start_type": "a bridge is connected as long as the cluster runs",
    "idle_timeout": "a bridge is connected as long as the cluster runs",
    "threshold": "a bridge is connected as long as the cluster runs",
    "round_robin": "there is one address",
    "notifications": "`lexicast status` shows each bridge",
    "notifications_local_only": "`lexicast status` shows each bridge",
    "notification_topic": "`lexicast status` shows each bridge",
}
# What would show a secret if it were told.
_SECRET: Final = ("password", "psk")
_DEFAULT_PAUSE_S: Final = (5.0, 30.0)
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass
class _Bridge:
    name: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    topics: list[BridgedTopic] = field(default_factory=list)
    host: str = ""

    def toml(self) -> str:
        """Its table."""
        secure = any(each in self.fields for each in ("ca", "certificate"))
        port = "" if ":" in self.host.rpartition("]")[2] else ":8883" if secure else ":1883"
        values = {"address": f"{'mqtts' if secure else 'mqtt'}://{self.host}{port}", **self.fields}
        lines = [f"[{self.name}]", *[f"{key} = {_toml(value)}" for key, value in values.items()]]
        for topic in self.topics:
            lines += ["", f"[[{self.name}.topic]]", f"filter = {_toml(topic.filter)}"]
            lines += [f"direction = {_toml(topic.direction)}", f"qos = {topic.qos}"]
            lines += [f"{key} = {_toml(said)}" for key in ("local", "remote") if (said := getattr(topic, key))]
        return "\n".join(lines)


@dataclass
class CarriedBridges:
    """The bridges, and the lines of which nothing follows."""

    bridges: list[_Bridge]
    left: list[NotCarried]

    def toml(self) -> str:
        """As a `bridges.toml`."""
        told = [f"# not carried over: line {each.line}, {each.text}: {each.why}" for each in self.left]
        return "\n\n".join([*(["\n".join(told)] if told else []), *[each.toml() for each in self.bridges]]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def carried_bridges(text: str) -> CarriedBridges:
    """The bridges of a mosquitto.conf. Raises ConfigError, which names the line."""
    if len(text) > CONF_BYTES_MAX:
        raise ConfigError(f"the file has {len(text)} characters: at most {CONF_BYTES_MAX} are read")
    found, is_bridges = CarriedBridges([], []), False
    for number, line in enumerate(text.splitlines(), 1):
        word, _, value = line.strip().partition(" ")
        value = value.strip()
        if not word or word.startswith("#"):
            continue
        if word == "connection":
            found.bridges.append(_begun(number, value, found))
            is_bridges = True
        elif word == "listener":
            is_bridges = False
        elif is_bridges:
            if not value:
                raise ConfigError(f"line {number}: {word} has no value")
            _take(found, number, word, value)
    _check_ended(found)
    return found


def _begun(number: int, name: str, found: CarriedBridges) -> _Bridge:
    _check_ended(found)
    plain = _NOT_A_NAME.sub("-", name).strip("-_")[:60] or f"bridge-{len(found.bridges)}"
    taken = {each.name for each in found.bridges}
    while plain in taken:
        plain += "-2"
    return _Bridge(plain, number, {"protocol": "3.1.1", "reconnect_s": _DEFAULT_PAUSE_S})


def _check_ended(found: CarriedBridges) -> None:
    """The last one is whole. Raises ConfigError."""
    if found.bridges and not found.bridges[-1].host:
        raise ConfigError(f"line {found.bridges[-1].line}: the connection has no address")


def _take(found: CarriedBridges, number: int, word: str, value: str) -> None:
    bridge = found.bridges[-1]
    if word in ("address", "addresses"):
        host, *others = value.split()
        bridge.host = host
        if others:
            found.left.append(NotCarried(number, " ".join(others)[:100], "there is one address"))
    elif word == "topic":
        _take_topic(found, bridge, number, value)
    elif word == "bridge_protocol_version":
        bridge.fields["protocol"] = _PROTOCOLS.get(value, "3.1.1")
    elif word in _PLAIN:
        name, kind = _PLAIN[word]
        bridge.fields[name] = _number(number, value) if kind is int else value
    elif word in _FLAGS:
        name, turned = _FLAGS[word]
        bridge.fields[name] = (value == "true") != turned
    elif word == "try_private":
        bridge.fields["tells_bridge"] = value == "true"
    elif word == "restart_timeout":
        pauses = [float(_number(number, each)) for each in value.split()[:2]]
        bridge.fields["reconnect_s"] = (pauses[0] or 1.0, max(pauses[-1], pauses[0], 1.0))
    elif word == "max_inflight_messages":
        bridge.fields["inflight_max"] = min(60_000, _number(number, value) or 60_000)
    elif word == "start_type" and value == "automatic":
        return
    elif not word.startswith(_NEEDLESS) and (word in _WHY or word.startswith("bridge_")):
        shown = word if any(each in word for each in _SECRET) else f"{word} {value}".strip()[:100]
        found.left.append(NotCarried(number, shown, _WHY.get(word, "nothing is like it")))


def _take_topic(found: CarriedBridges, bridge: _Bridge, number: int, value: str) -> None:
    """topic PATTERN [[[out | in | both] QOS] LOCAL-PREFIX REMOTE-PREFIX]."""
    words = [("" if word == '""' else word) for word in value.split()]
    pattern, direction, qos, local, remote = [*words, *("", OUT, "0", "", "")[len(words) :]][:5]
    if direction not in DIRECTIONS:
        raise ConfigError(f"line {number}: {direction!r} is no direction: it is one of {', '.join(DIRECTIONS)}")
    topic = BridgedTopic(pattern, direction, min(2, _number(number, qos)), local, remote)
    for other in bridge.topics:
        ways = {way for way in (OUT, IN) if {topic.direction, other.direction} <= {way, BOTH}}
        here = OUT in ways and overlap(topic.local_side().filter, other.local_side().filter)
        there = IN in ways and overlap(topic.remote_side().filter, other.remote_side().filter)
        if here or there:
            why = f"it overlaps {other.filter!r}: what matches both would come twice; make it another bridge"
            found.left.append(NotCarried(number, f"topic {value}"[:100], why))
            return
    bridge.topics.append(topic)


def _number(line: int, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ConfigError(f"line {line}: {text[:40]!r} is no number")
    return int(text)
