"""What bridges are to do: `bridges.toml`, looked at field by field.

    [site]                                  # the bridge's name
    address = "mqtts://broker.example:8883" # mqtt:// or mqtts://, a name or an address, and a port
    user = "lexicast"                       # files: their content is read where `lexicast up` runs
    password_file = "/etc/lexicast/site.password"

        [[site.topic]]
        filter = "#"
        direction = "out"                   # out: what is published here, in: what is published there, both
        local = "site/"                     # what stands before `filter` here, and there
        remote = ""

Every field has a limit, and what is not known is refused.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from ..errors import ConfigError, TopicError, UsageError
from ..points_in_time import parse_since
from ..topics.names import check_filter
from .topic_map import LocalFilter, overlap

FILE_BYTES_MAX: Final = 1024 * 1024
BRIDGES_MAX: Final = 100
TOPICS_MAX: Final = 100
NAME_CHARACTERS_MAX: Final = 64
TEXT_CHARACTERS_MAX: Final = 4_096

IN: Final = "in"
OUT: Final = "out"
BOTH: Final = "both"
DIRECTIONS: Final = (OUT, IN, BOTH)
PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
NOW: Final = "now"
V311: Final = "3.1.1"
V5: Final = "5"
INFLIGHT_MAX: Final = 1_000
INFLIGHT_MAX_V311: Final = 20

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_FILES: Final = ("password_file", "ca", "certificate", "key")

Table = TypeVar("Table")


def _field(default: Any, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "choices": choices})


@dataclass(frozen=True, slots=True)
class BridgedTopic:
    """One [[NAME.topic]]. `start`: where "out" begins when the bridge is new, as `since` of a subscription."""

    filter: str = "#"
    direction: str = _field(OUT, choices=DIRECTIONS)
    qos: int = _field(1, 0, 2)
    local: str = ""
    remote: str = ""
    start: str = NOW

    @property
    def goes_out(self) -> bool:
        """Whether what is published here goes there."""
        return self.direction != IN

    @property
    def comes_in(self) -> bool:
        """Whether what is published there comes here."""
        return self.direction != OUT

    def local_side(self) -> LocalFilter:
        """Of what is published here, and where it goes."""
        return LocalFilter(self.filter, self.local, self.remote)

    def remote_side(self) -> LocalFilter:
        """The same seen from there."""
        return LocalFilter(self.filter, self.remote, self.local)


@dataclass(frozen=True, slots=True)
class BridgeDefinition:
    """One bridge. Files are paths; their content is in `BridgeSecrets`."""

    name: str
    address: str = ""
    user: str = ""
    password_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify_host: bool = True
    protocol: str = _field(V5, choices=(V5, V311))
    client_id: str = ""
    # "in": whether what was published there while the bridge was away is lost, rather than kept there for it.
    clean_start: bool = False
    session_expiry_s: int = _field(7 * 86_400, 1, 0xFFFF_FFFF)
    keep_alive_s: int = _field(60, 5, 65_535)
    reconnect_s: tuple[float, float] = (0.5, 30.0)
    # Unacknowledged on their way out, and on their way in; what the other side allows counts where it is less. 0 is
    # 1,000, in 3.1.1 20: there the other side cannot say what it allows (Mosquitto ends a connection at 20 of QoS 2).
    inflight_max: int = _field(0, 0, 60_000)
    receive_max: int = _field(1_000, 1, 65_535)
    # Of what goes to another lexicast: a batch is at most so large, and waits for more so long.
    batch_bytes: int = _field(64 * 1024, 0, 256 * 1024)
    batch_s: float = _field(0.0, 0.0, 10.0)
    compress: bool = True
    # 3.1.1: say that it is a bridge, as Mosquitto's do, so that what it has published does not come back.
    tells_bridge: bool = True
    topic: tuple[BridgedTopic, ...] = ()

    @property
    def tls(self) -> bool:
        """Whether the link is encrypted."""
        return self.address.startswith("mqtts:")

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.address)
        return parts.hostname or "", parts.port or PORTS[parts.scheme]

    @property
    def remote_name(self) -> str:
        """What names the remote among the hops of a publication as long as it does not say its own name."""
        host, port = self.endpoint
        return f"{host}:{port}"

    @property
    def window(self) -> int:
        """How many may be unacknowledged on their way out."""
        return self.inflight_max or (INFLIGHT_MAX if self.protocol == V5 else INFLIGHT_MAX_V311)

    def files(self) -> dict[str, str]:
        """The paths that it names, by field."""
        return {name: path for name in _FILES if (path := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class BridgeSecrets:
    """The content of a definition's files."""

    password: bytes = dataclasses.field(default=b"", repr=False)
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = dataclasses.field(default=b"", repr=False)


def read_definitions(text: str) -> tuple[BridgeDefinition, ...]:
    """The bridges of a `bridges.toml`. Raises ConfigError, which names the bridge and the field."""
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"the file has {len(text)} characters: at most {FILE_BYTES_MAX} are read")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from None
    if len(tables) > BRIDGES_MAX:
        raise ConfigError(f"there are {len(tables)} bridges: at most {BRIDGES_MAX} may be")
    found = tuple([_bridge(name, table) for name, table in tables.items()])
    _check_client_ids(found)
    return found


def _check_client_ids(bridges: tuple[BridgeDefinition, ...]) -> None:
    """A broker has one connection a client id: of two bridges each would end the other's, for ever."""
    known: dict[tuple[str, str], str] = {}
    for each in bridges:
        other = known.setdefault((each.remote_name, each.client_id), each.name)
        if each.client_id and other != each.name:
            raise ConfigError(
                f"[{each.name}]: client_id = {each.client_id!r}: [{other}] has it at the same broker, and each would "
                "end the other's connection: leave it out"
            )


def _bridge(name: str, table: object) -> BridgeDefinition:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name}: it stands outside of a bridge; write [NAME] first")
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
        raise ConfigError(f"[{name}]: a bridge's name has 1 to {NAME_CHARACTERS_MAX} letters, digits, '-' and '_'")
    where = f"[{name}]"
    topics = table.get("topic", [])
    if not isinstance(topics, list) or not topics or len(topics) > TOPICS_MAX:
        raise ConfigError(f"{where}: it has 1 to {TOPICS_MAX} topics: write [[{name}.topic]] with filter and direction")
    read = tuple([_topic(f"[[{name}.topic]] number {number}", each) for number, each in enumerate(topics, 1)])
    fields = {key: value for key, value in table.items() if key != "topic"}
    found = _made(BridgeDefinition, where, {**fields, "name": name})
    found = dataclasses.replace(found, topic=read)
    _check_address(where, found)
    _check_fields(where, found)
    _check_topics(where, found)
    return found


def _topic(where: str, table: object) -> BridgedTopic:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: write it as [[NAME.topic]]")
    found = _made(BridgedTopic, where, table)
    for side in (found.local_side(), found.remote_side()):
        try:
            check_filter(side.filter.encode())
        except (TopicError, UnicodeEncodeError) as error:
            raise ConfigError(f"{where}: {error}") from None
    if set(found.local + found.remote) & {"+", "#"}:
        raise ConfigError(f"{where}: local and remote are what stands before the filter, without '+' and '#'")
    if found.local_side().filter.startswith("$"):
        raise ConfigError(f"{where}: topics below '$' are each broker's own, and are not bridged")
    try:
        start_of(found)
    except UsageError as error:
        raise ConfigError(f"{where}: start: {error}") from None
    return found


def start_of(topic: BridgedTopic) -> str | None:
    """`since` of the subscription. Raises UsageError."""
    if topic.start == NOW:
        return None
    parse_since(topic.start, 2**60, None)
    return topic.start


def _made(kind: type[Table], where: str, given: Mapping[str, Any]) -> Table:
    """A table of fields. Raises ConfigError."""
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    values = {}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{where}: there is no {key!r}; there are {', '.join(sorted(set(known) - {'name'}))}")
        values[key] = _checked(f"{where}: {key}", known[key], value)
    return kind(**values)


def _checked(what: str, field: dataclasses.Field[Any], value: Any) -> Any:
    kind = str(field.type)
    if kind.startswith("tuple"):
        return _pause(what, value)
    right: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
    if not isinstance(value, right[kind]) or (kind in ("int", "float") and isinstance(value, bool)):
        raise ConfigError(f"{what} = {value!r}: it is {_NAMES[kind]}")
    low, high, choices = (field.metadata.get(key) for key in ("low", "high", "choices"))
    if choices and value not in choices:
        raise ConfigError(f"{what} = {value!r}: it is one of {', '.join(map(repr, choices))}")
    if low is not None and high is not None and not low <= value <= high:
        raise ConfigError(f"{what} = {value!r}: it is from {low} to {high}")
    if isinstance(value, str) and ("\0" in value or len(value) > TEXT_CHARACTERS_MAX):
        raise ConfigError(f"{what}: a text has at most {TEXT_CHARACTERS_MAX:,} characters, and no NUL")
    return value


_NAMES: Final = {"str": "a text in quotes", "bool": "true or false", "int": "a whole number", "float": "a number"}


def _pause(what: str, value: Any) -> tuple[float, float]:
    good = isinstance(value, list | tuple) and len(value) == 2 and all(type(each) in (int, float) for each in value)
    if not good or not 0.01 <= value[0] <= value[1] <= 3_600:
        raise ConfigError(f"{what} = {value!r}: the shortest and the longest pause, 0.01 to 3600 s: [0.5, 30]")
    return float(value[0]), float(value[1])


def _check_address(where: str, bridge: BridgeDefinition) -> None:
    if "@" in bridge.address:
        raise ConfigError(f"{where}: address: give user and password_file, so that the address can be shown")
    told = f"{where}: address = {bridge.address!r}: write 'mqtt://HOST:PORT', or 'mqtts://HOST:PORT' with TLS"
    try:
        parts = urlsplit(bridge.address)
        good = parts.scheme in PORTS and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ConfigError(told) from None
    if not good or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError(told)


def _check_fields(where: str, bridge: BridgeDefinition) -> None:
    if not bridge.tls and (named := [name for name in ("ca", "certificate", "key") if getattr(bridge, name)]):
        raise ConfigError(f"{where}: {', '.join(named)}: these are for TLS: write address = 'mqtts://...'")
    if bool(bridge.certificate) != bool(bridge.key):
        raise ConfigError(f"{where}: certificate and key belong together: give both, or none")
    if bridge.password_file and not bridge.user and bridge.protocol == V311:
        raise ConfigError(f"{where}: MQTT 3.1.1 has no password without a user: give user")


def _check_topics(where: str, bridge: BridgeDefinition) -> None:
    """What goes one way through two topics would come twice."""
    for way, sides in (
        (OUT, [each.local_side() for each in bridge.topic if each.goes_out]),
        (IN, [each.remote_side() for each in bridge.topic if each.comes_in]),
    ):
        for i, one in enumerate(sides):
            for other in sides[i + 1 :]:
                if overlap(one.filter, other.filter):
                    raise ConfigError(
                        f"{where}: topics match {one.filter!r} and {other.filter!r} on their way {way}: what matches "
                        "both would come twice; narrow one of them, or make it another bridge"
                    )
