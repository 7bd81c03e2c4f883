"""A mosquitto.conf as tables of lexicast's configuration, and what of it cannot be carried over (mosquitto.conf(5)).

What is carried over: listeners (the first without TLS, the first with), their certificates, password_file, acl_file,
allow_anonymous, limits. What needs no word, since it is always so here or changes nothing: that it is stored, where it
logs. Everything else is told, line by line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..errors import ConfigError

CONF_BYTES_MAX: Final = 1024 * 1024
DEFAULT_PORT: Final = 1883

# Of a listener.
_OF_LISTENER: Final = {
    "cafile": "client_ca",
    "certfile": "certificate",
    "keyfile": "key",
    "crlfile": "crl",
}
_LIMITS: Final = {
    "max_packet_size": "packet_bytes_max",
    "max_connections": "connections_max",
    "max_keepalive": "keep_alive_s_max",
}
# Nothing is lost with these.
_NEEDLESS: Final = (
    "persistence",
    "autosave",
    "log_",
    "pid_file",
    "user",
    "sys_interval",
    "connection_messages",
    "set_tcp_nodelay",
    "retain_available",
    "queue_qos0_messages",
    "max_queued_",
    "max_inflight_",
)
_WHY: Final = {
    "protocol": "it is none of mqtt and websockets",
    "bind_interface": "give its address as mqtt.host",
    "mount_point": "there are none",
    "per_listener_settings": "users and rules are the same for all listeners",
    "auth_plugin": "there are no plugins; tokens: security.jwt_key_file",
    "plugin": "there are no plugins; tokens: security.jwt_key_file",
    "psk_file": "there are no pre-shared keys",
    "psk_hint": "there are no pre-shared keys",
    "connection": "`lexicast bridge import` carries bridges over",
    "include_dir": "import its files one by one",
    "tls_version": "tls.minimum is 1.2 or 1.3",
    "ciphers": "OpenSSL's are used",
    "check_retain_source": "it is always on",
}


# By WebSocket, with TLS.
_PORTS: Final = {
    (False, False): ("port", "host"),
    (False, True): ("tls_port", "tls_host"),
    (True, False): ("ws_port", "ws_host"),
    (True, True): ("wss_port", "wss_host"),
}


class NotCarried(NamedTuple):
    """A line of which nothing follows here, and why."""

    line: int
    text: str
    why: str


@dataclass
class _Listener:
    """One of them. `line` 0: the one that is there without being named."""

    line: int
    port: int
    host: str = ""
    tls: dict[str, str] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    is_websocket: bool = False


@dataclass
class CarriedConfiguration:
    """Tables of the configuration, and the lines of which nothing follows."""

    tables: dict[str, dict[str, Any]]
    left: list[NotCarried]

    def toml(self) -> str:
        """As a configuration file."""
        lines = [f"# not carried over: line {each.line}, {each.text}: {each.why}" for each in self.left]
        for name, table in self.tables.items():
            if table:
                lines += ["", f"[{name}]", *[f"{key} = {_toml(value)}" for key, value in table.items()]]
        return "\n".join(lines).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a basic string's escapes, control characters too
    return str(value)


class _Reading:
    """A file, line by line."""

    def __init__(self) -> None:
        self.listeners: list[_Listener] = []
        self.default = _Listener(0, DEFAULT_PORT)
        self.named_default = False
        self.mqtt: dict[str, Any] = {}
        self.security: dict[str, Any] = {}
        self.left: list[NotCarried] = []

    def take(self, number: int, line: str) -> None:
        """One line. Raises ConfigError."""
        word, _, value = line.strip().partition(" ")
        value = value.strip()
        at = self.listeners[-1] if self.listeners else self.default
        if word == "listener":
            port, _, host = value.partition(" ")
            self.listeners.append(_Listener(number, _number(number, port), host.strip()))
        elif word == "port":
            self.default.port, self.default.line, self.named_default = _number(number, value), number, True
        elif word == "bind_address":
            self.default.host, self.named_default = value, True
        elif word in ("password_file", "acl_file"):
            self.security[word] = value
        elif word == "allow_anonymous":
            self._take_anonymous(number, value == "true")
        elif word in _OF_LISTENER:
            at.tls[_OF_LISTENER[word]] = value
        elif word in ("require_certificate", "use_identity_as_username", "use_subject_as_username"):
            at.flags[word] = value == "true"
        elif word in _LIMITS and _number(number, value) > 0:
            self.mqtt[_LIMITS[word]] = int(value)
        elif word == "protocol" and value in ("mqtt", "websockets"):
            at.is_websocket = value == "websockets"
        elif not word.startswith(_NEEDLESS):
            self.left.append(NotCarried(number, f"{word} {value}".strip()[:100], _WHY.get(word, "nothing is like it")))

    def _take_anonymous(self, number: int, allowed: bool) -> None:
        """It holds for all listeners here, so the strictest counts."""
        if allowed and self.mqtt.get("allow_anonymous") == "never":
            self.left.append(NotCarried(number, "allow_anonymous true", "it is false elsewhere, and is one for all"))
        else:
            self.mqtt["allow_anonymous"] = "always" if allowed else "never"

    def carried(self) -> CarriedConfiguration:
        """What follows."""
        listeners = self.listeners
        if self.named_default or not listeners:
            listeners = [self.default, *listeners]
        tls: dict[str, Any] = {}
        ports: dict[str, Any] = {}
        for each in listeners:
            secure = "certificate" in each.tls
            kind = "WebSocket " * each.is_websocket + ("with TLS" if secure else "without TLS")
            port, host = _PORTS[each.is_websocket, secure]
            if port in ports:
                told = f"listener {each.port} {each.host}".strip()
                self.left.append(NotCarried(each.line, told, f"there is one {kind} already"))
                continue
            ports[port] = each.port
            if each.host or each.line:
                ports[host] = each.host or "0.0.0.0"
            if secure:
                tls = {**each.tls, **_certificates(each.flags)}
                if tls["client_certificates"] == "no":
                    tls = {key: value for key, value in tls.items() if key not in ("client_ca", "crl")}
        if ports and "port" not in ports:
            ports["host"] = "127.0.0.1"  # there is one without TLS always: for this machine alone then
        if (self.listeners or self.named_default) and not ("password_file" in self.security or "user_from" in tls):
            self.mqtt.setdefault("allow_anonymous", "never")  # "auto" would let in who is on this machine
        return CarriedConfiguration(
            {"mqtt": {**ports, **self.mqtt}, "tls": tls, "security": self.security}, sorted(self.left)
        )


def _certificates(flags: Mapping[str, bool]) -> dict[str, str]:
    named = flags.get("use_identity_as_username") or flags.get("use_subject_as_username")
    found = {"client_certificates": "required" if flags.get("require_certificate") else "optional" if named else "no"}
    if flags.get("use_identity_as_username"):
        found["user_from"] = "cn"
    elif flags.get("use_subject_as_username"):
        found["user_from"] = "subject"
    return found


def carried_over(text: str) -> CarriedConfiguration:
    """A mosquitto.conf. Raises ConfigError, which names the line."""
    if len(text) > CONF_BYTES_MAX:
        raise ConfigError(f"the file has {len(text)} characters: at most {CONF_BYTES_MAX} are read")
    reading = _Reading()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            reading.take(number, line)
    return reading.carried()


def _number(line: int, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ConfigError(f"line {line}: {text[:40]!r} is no number")
    return int(text)
