"""The configuration: one frozen dataclass a table, every knob with its unit in the name, its default and its range.

`lexicast.toml` explains each knob and the reason for its default (a test holds it to this module). Later sources
override earlier ones, knob by knob:

    defaults here  <-  a TOML file  <-  environment LEXICAST_TABLE__KEY  <-  command line (dotted keys)

What is not known is refused: a misspelt limit that is silently ignored is worse than one that is missing.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..errors import ConfigError
from ..positions import DEFAULT_GROUPS
from ..protocol.heartbeat import Beats
from ..security.networks import wrong_networks
from ..security.tokens import check_algorithms
from .knobs import checked, closest, knob, parsed

ENVIRONMENT_PREFIX = "LEXICAST_"
FILE_VARIABLE = "LEXICAST_CONFIG"
FILE_NAME = "lexicast.toml"

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
DAY_S = 86_400
YEAR_S = 366 * DAY_S


Plain: TypeAlias = dict[str, dict[str, Any]]


class _Table:
    """A table checks itself, so that one made by hand is as good as one read from a file."""

    def __post_init__(self) -> None:
        assert dataclasses.is_dataclass(self)
        for field in dataclasses.fields(self):
            value = checked(type(self).__name__.removesuffix("Config").lower(), field, getattr(self, field.name), "")
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class ClusterConfig(_Table):
    """[cluster]: what all nodes agree on, fixed when the cluster is created."""

    groups: int = knob(DEFAULT_GROUPS, 1, 10_000)
    copies: int = knob(0, 0, 7)
    min_copies: int = knob(0, 0, 7)
    detect_s: float = knob(1.0, 0.1, 60.0)
    slow_s: float = knob(1.0, 0.1, 60.0)


@dataclass(frozen=True)
class NodeConfig(_Table):
    """[node]: one machine's share."""

    name: str = knob("")
    location: str = knob("")
    data_dir: str = knob("")
    host: str = knob("127.0.0.1")
    brokers: int = knob(1, 1, 256)
    coordinators: int = knob(1, 1, 256)
    sampling: int = knob(1, 1, 64)
    matchers: int = knob(0, 0, 64)
    log_level: str = knob("warning", choices=("debug", "info", "warning", "error"))

    def own_name(self) -> str:
        """`name`, or the machine's when it is empty."""
        return self.name or os.uname().nodename

    def data_path(self) -> Path:
        """`data_dir`, or the user's data folder when it is empty."""
        if self.data_dir:
            return Path(self.data_dir).expanduser().absolute()
        home = os.environ.get("XDG_DATA_HOME", "")
        # the XDG specification: a relative path there is to be ignored
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share") / "lexicast"


class MqttPort(NamedTuple):
    """A port for MQTT beside `mqtt.port`. `host`: where it listens, "" where its knob says nothing."""

    scheme: str  # of its URLs: "mqtts", "ws", "wss"
    port: int
    host: str
    port_knob: str
    host_knob: str

    @property
    def is_encrypted(self) -> bool:
        """Whether it is with TLS."""
        return self.scheme != "ws"


@dataclass(frozen=True)
class MqttConfig(_Table):
    """[mqtt]: the listener and its sessions."""

    port: int = knob(1883, 0, 65_535)
    host: str = knob("")
    tls_port: int = knob(0, 0, 65_535)
    tls_host: str = knob("")
    ws_port: int = knob(0, 0, 65_535)
    ws_host: str = knob("")
    wss_port: int = knob(0, 0, 65_535)
    wss_host: str = knob("")
    ws_origins: tuple[str, ...] = knob(())
    proxies: tuple[str, ...] = knob(())
    allow_anonymous: str = knob("auto", choices=("auto", "loopback", "never", "always"))
    credentials: str = knob("refuse", choices=("refuse", "ignore"))
    packet_bytes_max: int = knob(MIB, KIB, 268_435_460)
    output_bytes_max: int = knob(4 * MIB, 64 * KIB, GIB)
    connect_timeout_s: float = knob(10.0, 0.1, 3_600)
    connections_max: int = knob(18_000, 1, 1_000_000)
    connections_per_address_max: int = knob(0, 0, 1_000_000)
    keep_alive_s_max: int = knob(65_535, 1, 65_535)
    session_expiry_s_max: int = knob(7 * DAY_S, 0, 4_294_967_295)
    subscriptions_per_session_max: int = knob(10_000, 1, 1_000_000)
    inflight_max: int = knob(4_000, 1, 65_535)
    receive_max: int = knob(1_000, 1, 65_535)
    topic_alias_max: int = knob(16, 0, 65_535)
    topic_aliases_sent_max: int = knob(4_096, 0, 65_535)
    sys_interval_s: int = knob(10, 0, 65_535)
    slow_qos0: str = knob("catch-up", choices=("catch-up", "drop"))
    share_strategy: str = knob("topic", choices=("topic", "free"))
    share_expiry_s: int = knob(7 * DAY_S, 1, 4_294_967_295)

    def more_ports(self) -> list[MqttPort]:
        """Those beside `port` that there are: with TLS, WebSocket, WebSocket with TLS."""
        found = [
            MqttPort("mqtts", self.tls_port, self.tls_host, "mqtt.tls_port", "mqtt.tls_host"),
            MqttPort("ws", self.ws_port, self.ws_host, "mqtt.ws_port", "mqtt.ws_host"),
            MqttPort("wss", self.wss_port, self.wss_host, "mqtt.wss_port", "mqtt.wss_host"),
        ]
        return [each for each in found if each.port]


@dataclass(frozen=True)
class TlsConfig(_Table):
    """[tls]: what the ports `mqtt.tls_port` and `mqtt.wss_port` show of themselves and ask of clients."""

    certificate: str = knob("")
    key: str = knob("")
    client_ca: str = knob("")
    crl: str = knob("")
    client_certificates: str = knob("no", choices=("no", "optional", "required"))
    user_from: str = knob("no", choices=("no", "cn", "subject"))
    minimum: str = knob("1.2", choices=("1.2", "1.3"))
    handshakes_max: int = knob(256, 1, 65_536)
    handshakes_per_address_max: int = knob(64, 1, 65_536)

    def contradiction(self) -> str:
        """Which of these knobs do not go together, and what to do; "" where all do."""
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            return f"tls.{missing} is not set: a certificate and its key go together"
        if self.client_certificates != "no" and not self.client_ca:
            return f'tls.client_certificates = "{self.client_certificates}" needs tls.client_ca, who vouches for them'
        for name, value in (("user_from", self.user_from), ("client_ca", self.client_ca), ("crl", self.crl)):
            if value not in ("", "no") and self.client_certificates == "no":
                return f'tls.{name} needs tls.client_certificates = "optional" or "required": clients show none'
        return ""


@dataclass(frozen=True)
class SecurityConfig(_Table):
    """[security]: who may log in, and what they may do."""

    password_file: str = knob("")
    acl_file: str = knob("")
    jwt_key_file: str = knob("")
    jwt_algorithms: tuple[str, ...] = knob(("RS256", "ES256", "EdDSA"))
    jwt_user: str = knob("sub")
    jwt_audience: str = knob("")
    jwt_issuer: str = knob("")
    insecure: bool = knob(False)
    links: str = knob("auto", choices=("auto", "encrypted", "plain"))
    hashing_threads: int = knob(2, 1, 64)
    hashing_waiting_max: int = knob(1_000, 1, 1_000_000)

    @property
    def has_users(self) -> bool:
        """Whether somebody can log in."""
        return bool(self.password_file or self.jwt_key_file)


@dataclass(frozen=True)
class HttpConfig(_Table):
    """[http]: what operators look at: metrics, health, the page."""

    port: int = knob(0, 0, 65_535)
    host: str = knob("127.0.0.1")
    tls: str = knob("auto", choices=("auto", "always"))
    operators: tuple[str, ...] = knob(())
    connections_max: int = knob(1_000, 1, 100_000)
    streams_max: int = knob(32, 1, 10_000)


@dataclass(frozen=True)
class LinkConfig(_Table):
    """[link]: the sockets between brokers, coordinators and Python clients."""

    window_batches: int = knob(3, 1, 64)
    batch_bytes_max: int = knob(256 * KIB, 4 * KIB, 64 * MIB)
    queue_bytes_max: int = knob(8 * MIB, 64 * KIB, GIB)
    request_timeout_s: float = knob(30.0, 0.1, 3_600)
    beat_s: float = knob(1.0, 0.05, 2.0)
    silence_s: float = knob(10.0, 3.0, 3_600)

    def beats(self) -> Beats:
        """As links take them."""
        return Beats(self.beat_s, self.silence_s)


@dataclass(frozen=True)
class StorageConfig(_Table):
    """[storage]: a coordinator's store."""

    map_bytes: int = knob(64 * GIB, 16 * MIB, 64 * TIB)
    quota_bytes: int = knob(48 * GIB, 8 * MIB, 64 * TIB)
    reserve_bytes: int = knob(256 * MIB, 0, TIB)
    retention_s: float = knob(7.0 * DAY_S, 0, 100 * YEAR_S)
    retention_bytes: int = knob(-1, -1, 64 * TIB)
    producer_retention_s: float = knob(1.0 * DAY_S, 60, 100 * YEAR_S)
    clock_confirm_s: float = knob(1.0 * DAY_S, 0, 100 * YEAR_S)
    block_bytes_max: int = knob(16 * MIB, 64 * KIB, 256 * MIB)
    commit_bytes_max: int = knob(16 * MIB, 64 * KIB, 256 * MIB)
    index_entries_max: int = knob(65_536, 1, 10_000_000)
    index_log_bytes_max: int = knob(256 * MIB, MIB, TIB)
    index_step_topics: int = knob(2_048, 1, 1_000_000)
    topic_cache_max: int = knob(100_000, 1, 100_000_000)
    max_readers: int = knob(256, 16, 100_000)

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `storage.environment.options.StoreOptions` (where None stands for our -1)."""
        return vars(self) | {"retention_bytes": None if self.retention_bytes < 0 else self.retention_bytes}


@dataclass(frozen=True)
class BrokerConfig(_Table):
    """[broker]: a broker's memory and habits."""

    cache_bytes_max: int = knob(32 * MIB, 0, 64 * GIB)
    session_save_s: float = knob(1.0, 0.01, 3_600)
    routes_max: int = knob(100_000, 0, 100_000_000)


@dataclass(frozen=True)
class CompressionConfig(_Table):
    """[compression]: which topics learn a language, and how much of them is looked at."""

    enabled: bool = knob(True)
    families: tuple[str, ...] = knob(())
    optout: tuple[str, ...] = knob(())
    boundary_levels: int = knob(0, 0, 32)
    publishers_min: int = knob(3, 1, 100)
    families_max: int = knob(1_000, 1, 1_000_000)
    dictionary_bytes_max: int = knob(64 * KIB, 256, 256 * KIB)
    sampling_records_per_s: int = knob(500, 4, 10_000_000)
    sampling_cpu_percent: int = knob(5, 1, 100_000)
    stored_cpu_percent: int = knob(10, 0, 100)
    stream_records_per_s: int = knob(1_000, 0, 10_000_000)


@dataclass(frozen=True)
class BridgeConfig(_Table):
    """[bridge]: other brokers that this cluster exchanges publications with."""

    file: str = knob("")


@dataclass(frozen=True)
class ContentConfig(_Table):
    """[content]: matchers that are too many for each of them to be linked to everybody."""

    overlay_beyond: int = knob(256, 0, 256)
    overlay_base: int = knob(8, 2, 256)
    overlay_levels: int = knob(2, 1, 8)
    overlay_contacts: int = knob(3, 1, 16)


@dataclass(frozen=True)
class Config:
    """All tables. Raises ConfigError where two knobs contradict each other."""

    cluster: ClusterConfig = ClusterConfig()
    node: NodeConfig = NodeConfig()
    mqtt: MqttConfig = MqttConfig()
    tls: TlsConfig = TlsConfig()
    security: SecurityConfig = SecurityConfig()
    link: LinkConfig = LinkConfig()
    storage: StorageConfig = StorageConfig()
    broker: BrokerConfig = BrokerConfig()
    compression: CompressionConfig = CompressionConfig()
    bridge: BridgeConfig = BridgeConfig()
    http: HttpConfig = HttpConfig()
    content: ContentConfig = ContentConfig()

    def __post_init__(self) -> None:
        if self.cluster.copies and self.cluster.min_copies > self.cluster.copies:
            raise ConfigError(
                f"cluster.min_copies = {self.cluster.min_copies} is more than cluster.copies = {self.cluster.copies}: "
                "nothing would ever be acknowledged; lower it or raise the other"
            )
        if self.security.jwt_key_file:
            check_algorithms(self.security.jwt_algorithms)
        for family in self.compression.families:
            if set(family.split("/")[: self.compression.boundary_levels]) & {"+", "#"}:
                raise ConfigError(
                    f"compression.families: {family!r} crosses the boundary of compression.boundary_levels = "
                    f"{self.compression.boundary_levels}: name its first levels, or lower that"
                )
        if wrong := self.tls.contradiction() or wrong_networks("mqtt.proxies", self.mqtt.proxies):
            raise ConfigError(wrong)
        self._check_ports()
        if self.http.port and self.http.tls == "always" and not self.tls.certificate:
            raise ConfigError(
                'http.tls = "always" needs tls.certificate and tls.key: `lexicast cert make` makes some to try it'
            )
        for low, high in (
            ("link.batch_bytes_max", "link.queue_bytes_max"),
            ("mqtt.packet_bytes_max", "link.queue_bytes_max"),
            ("mqtt.packet_bytes_max", "mqtt.output_bytes_max"),
            ("storage.reserve_bytes", "storage.quota_bytes"),
            ("storage.quota_bytes", "storage.map_bytes"),
            ("storage.block_bytes_max", "storage.commit_bytes_max"),
            ("link.batch_bytes_max", "storage.block_bytes_max"),
            ("mqtt.packet_bytes_max", "storage.block_bytes_max"),
        ):
            if self[low] > self[high]:
                raise ConfigError(
                    f"{low} = {self[low]} is more than {high} = {self[high]}: lower it or raise the other"
                )

    def _check_ports(self) -> None:
        """Raises ConfigError: one needs what is not there, or two are the same."""
        taken = {self.mqtt.port: "mqtt.port"}
        if self.http.port and self.http.port == self.mqtt.port:
            raise ConfigError(f"http.port and mqtt.port are both {self.http.port}: choose another for one of them")
        taken[self.http.port] = "http.port"
        for each in self.mqtt.more_ports():
            if each.is_encrypted and not self.tls.certificate:
                raise ConfigError(
                    f"{each.port_knob} needs tls.certificate and tls.key: `lexicast cert make` makes some to try it"
                )
            if other := taken.get(each.port):
                raise ConfigError(f"{each.port_knob} and {other} are both {each.port}: choose another for one of them")
            taken[each.port] = each.port_knob

    @property
    def has_users(self) -> bool:
        """Whether clients log in, with passwords or certificates, or there are rules of who may do what."""
        return self.security.has_users or self.security.acl_file != "" or self.tls.user_from != "no"

    @property
    def anonymous(self) -> str:
        """Who may connect without logging in: "loopback", "never" or "always" (`mqtt.allow_anonymous`)."""
        said = self.mqtt.allow_anonymous
        has_users = self.security.has_users or self.tls.user_from != "no"
        return said if said != "auto" else "never" if has_users else "loopback"

    def __getitem__(self, dotted: str) -> Any:
        """The value of `table.key`. Raises ConfigError for an unknown one."""
        table, field = _find(dotted, "")
        return getattr(getattr(self, table), field.name)

    def as_dict(self) -> Plain:
        """Plain dicts and lists (for TOML, JSON, msgpack and Ray actors); `from_dict` is the inverse."""
        tables = dataclasses.asdict(self)
        return {
            name: {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}
            for name, table in tables.items()
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], source: str = "") -> Config:
        """Defaults, overridden by `plain` ({table: {key: value}}). Raises ConfigError."""
        return _build(_flatten(plain, source))

    def replaced(self, **dotted: Any) -> Config:
        """A copy with other values: `config.replaced(mqtt__port=0)`. Raises ConfigError."""
        plain = self.as_dict()
        for key, value in dotted.items():
            table, field = _find(key.replace("__", ".", 1), "")
            plain[table][field.name] = value
        return Config.from_dict(plain)


Sourced: TypeAlias = dict[str, tuple[Any, str]]  # dotted key -> (value, where it came from)

_KINDS: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(Config)}

TABLES: dict[str, dict[str, dataclasses.Field[Any]]] = {
    table: {field.name: field for field in dataclasses.fields(kind)} for table, kind in _KINDS.items()
}


def load_config(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration from all sources. Raises ConfigError.

    `path`: a TOML file that must exist; None: the one that LEXICAST_CONFIG names, else `lexicast.toml` in the current
    folder if there is one. `environment`: default `os.environ`. `overrides`: the command line's, {"mqtt.port": 1884};
    texts are read as in the environment.
    """
    environment = os.environ if environment is None else environment
    if path is None and environment.get(FILE_VARIABLE):
        path = Path(environment[FILE_VARIABLE])
    values: Sourced = {}
    if path is not None or Path(FILE_NAME).is_file():
        path = path or Path(FILE_NAME)
        values |= _flatten(_read(path), str(path))
    values |= _from_environment(environment)
    for dotted, value in (overrides or {}).items():
        _, field = _find(dotted, "command line")
        values[dotted] = (parsed(field, value) if isinstance(value, str) else value, "command line")
    return _build(values)


def default_text() -> str:
    """The text of the documented `lexicast.toml` that comes with this version."""
    from importlib import resources  # loads what opens archives: only where the text is asked for

    return (resources.files("lexicast") / FILE_NAME).read_text(encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> Sourced:
    """LEXICAST_MQTT__PORT=1884 and the like; names without a double underscore are not the configuration's."""
    values: Sourced = {}
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            dotted = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
            source = f"environment variable {name}"
            _, field = _find(dotted, source)
            values[dotted] = (parsed(field, text), source)
    return values


def _flatten(plain: Mapping[str, Any], source: str) -> Sourced:
    values: Sourced = {}
    for table, keys in plain.items():
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{table}{_in(source)} is no table: a key stands below a table's head, such as [mqtt]")
        if table not in TABLES:
            raise ConfigError(f"unknown table [{table}]{_in(source)}: {closest(table, TABLES)}")
        for key, value in keys.items():
            _find(f"{table}.{key}", source)
            values[f"{table}.{key}"] = (value, source)
    return values


def _find(dotted: str, source: str) -> tuple[str, dataclasses.Field[Any]]:
    """The table and the field of a dotted key. Raises ConfigError with the closest known one."""
    table, _, key = dotted.partition(".")
    field = TABLES.get(table, {}).get(key)
    if field is None:
        every = [f"{name}.{known}" for name, fields in TABLES.items() for known in fields]
        near = [known for known in every if known.partition(".")[0] == table] or every
        if any(known.endswith(f".{key}") for known in every):
            near = [known for known in every if known.endswith(f".{key}")]
        raise ConfigError(f"unknown key {dotted}{_in(source)}: {closest(dotted, near)}")
    return table, field


def _in(source: str) -> str:
    return f" ({source})" if source else ""


def _build(values: Sourced) -> Config:
    tables: Plain = {}
    for dotted, (value, source) in values.items():
        table, field = _find(dotted, source)
        tables.setdefault(table, {})[field.name] = checked(table, field, value, source)
    return Config(**{table: _KINDS[table](**keys) for table, keys in tables.items()})
