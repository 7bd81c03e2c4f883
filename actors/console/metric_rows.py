"""The metrics that there are, and where each is found in what an actor says about itself. No label names a topic or a
client. docs/http.md has the same table (a test compares).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
SAMPLER: Final = "sampler"
NODE: Final = "node"
ANY: Final = "any"

Said = Mapping[str, Any]
# The value of an actor, or (label, value) of several.
Read = Callable[[Said], "float | Iterable[tuple[str, float]] | None"]


class MetricRow(NamedTuple):
    """One metric. `of`: whose it is; `label`: what tells its series apart, beside "actor"; "" where it has one."""

    name: str
    kind: str
    of: str
    label: str
    text: str
    read: Read


def _at(*path: str, scale: float = 1.0) -> Read:
    def read(said: Said) -> float | None:
        found: Any = said
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return None if found is None else float(found) * scale

    return read


def _each(*path: str) -> Read:
    def read(said: Said) -> Iterable[tuple[str, float]]:
        found: Any = said
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return [(str(key), float(value)) for key, value in (found or {}).items()]

    return read


def _connections(said: Said) -> Iterable[tuple[str, float]]:
    if (mqtt := said.get("mqtt")) is None:  # it does not answer
        return ()
    return [("mqtt", mqtt.get("connections", 0)), ("python", said.get("clients", 0))]


def _dropped(said: Said) -> Iterable[tuple[str, float]]:
    if (mqtt := said.get("mqtt")) is None:  # a 0 would be a counter that began again
        return ()
    return [("dollar_topic", mqtt.get("dropped_dollar", 0)), ("defect", said.get("undeliverable", 0))]


def _until(said: Said) -> float | None:
    mqtt = said.get("mqtt", {})
    ends = [door["until_s"] for name in ("tls", "wss") if (door := mqtt.get(name)) and door["until_s"]]
    return min(ends, default=None)


def _followers_lag(said: Said) -> float | None:
    followers = (said.get("copies") or {}).get("followers", {})
    return max([float(each["lag"]) for each in followers.values()], default=0.0) if followers else None


def _damage(said: Said) -> float | None:
    if "store" not in said:
        return None
    damage = said.get("damage")
    return float(sum(damage["counts"].values())) if damage else 0.0


def _oldest(said: Said) -> float | None:
    oldest_us = said.get("store", {}).get("oldest_us", 0)
    return oldest_us / 1_000_000 if oldest_us else None


METRICS: Final = (
    MetricRow(
        "lexicast_ready",
        GAUGE,
        NODE,
        "",
        "1 where this node serves (/health/ready)",
        _at("ready"),
    ),
    MetricRow(
        "lexicast_coordination_away_seconds",
        GAUGE,
        NODE,
        "",
        "For how long the coordination server has not been reached",
        _at("coordination_away_s"),
    ),
    MetricRow(
        "lexicast_groups_without_leader",
        GAUGE,
        NODE,
        "",
        "Topic groups that nobody is known to lead, of the whole cluster: the same on every node",
        _at("groups_without_leader"),
    ),
    MetricRow(
        "lexicast_up",
        GAUGE,
        ANY,
        "role",
        "1 where an actor answers, 0 where it does not",
        _each("up"),
    ),
    MetricRow(
        "lexicast_resident_memory_bytes",
        GAUGE,
        ANY,
        "",
        "Memory of an actor's process",
        _at("resident_bytes"),
    ),
    MetricRow(
        "lexicast_cpu_seconds_total",
        COUNTER,
        ANY,
        "",
        "CPU time of an actor's process",
        _at("cpu_s"),
    ),
    MetricRow(
        "lexicast_event_loop_lag_seconds",
        GAUGE,
        ANY,
        "",
        "The longest turn of an actor's event loop since the last look",
        _at("loop_ms", scale=0.001),
    ),
    MetricRow(
        "lexicast_connections",
        GAUGE,
        BROKER,
        "kind",
        "Clients that are connected",
        _connections,
    ),
    MetricRow(
        "lexicast_sessions",
        GAUGE,
        BROKER,
        "",
        "MQTT sessions that a broker has, connected or not",
        _at("mqtt", "sessions"),
    ),
    MetricRow(
        "lexicast_filters",
        GAUGE,
        BROKER,
        "",
        "Topic filters that somebody is subscribed to at a broker",
        _at("filters"),
    ),
    MetricRow(
        "lexicast_messages_received_total",
        COUNTER,
        BROKER,
        "",
        "Publications that brokers took from clients",
        _at("published_records"),
    ),
    MetricRow(
        "lexicast_messages_sent_total",
        COUNTER,
        BROKER,
        "",
        "Publications that brokers delivered to clients",
        _at("delivered_records"),
    ),
    MetricRow(
        "lexicast_bytes_received_total",
        COUNTER,
        BROKER,
        "",
        "What clients sent to brokers, without TLS",
        _at("received_bytes"),
    ),
    MetricRow(
        "lexicast_bytes_sent_total",
        COUNTER,
        BROKER,
        "",
        "Publications as brokers sent them to clients, without TLS",
        _at("sent_bytes"),
    ),
    MetricRow(
        "lexicast_messages_dropped_total",
        COUNTER,
        BROKER,
        "reason",
        "Publications that were not passed on: on topics below $, or for a defect",
        _dropped,
    ),
    MetricRow(
        "lexicast_requests_refused_total",
        COUNTER,
        BROKER,
        "what",
        "What rules refused to clients",
        _each("rights", "refused"),
    ),
    MetricRow(
        "lexicast_connects_refused_total",
        COUNTER,
        BROKER,
        "reason",
        "MQTT connections that were refused, by CONNACK's code or the limit",
        _each("mqtt", "refused"),
    ),
    MetricRow(
        "lexicast_logins_total",
        COUNTER,
        BROKER,
        "by",
        "Clients that were let in, by what",
        _each("mqtt", "logins", "let_in"),
    ),
    MetricRow(
        "lexicast_logins_refused_total",
        COUNTER,
        BROKER,
        "reason",
        "Clients that were not let in",
        _each("mqtt", "logins", "refused"),
    ),
    MetricRow(
        "lexicast_publishers_paused",
        GAUGE,
        BROKER,
        "",
        "MQTT publishers that are not read: they send more than the cluster takes",
        _at("mqtt", "paused_publishers"),
    ),
    MetricRow(
        "lexicast_catching_up",
        GAUGE,
        BROKER,
        "",
        "Subscribers that are being brought up from the past",
        _at("catching_up"),
    ),
    MetricRow(
        "lexicast_catching_up_long",
        GAUGE,
        BROKER,
        "",
        "Those of them for which it has lasted a minute",
        _at("long_behind"),
    ),
    MetricRow(
        "lexicast_unanswered_bytes",
        GAUGE,
        BROKER,
        "",
        "Publications on their way to coordinators, and not answered",
        _at("unanswered_bytes"),
    ),
    MetricRow(
        "lexicast_dictionaries",
        GAUGE,
        BROKER,
        "",
        "Topic families whose dictionary a broker holds",
        _at("dictionaries"),
    ),
    MetricRow(
        "lexicast_payload_raw_bytes_total",
        COUNTER,
        BROKER,
        "",
        "Payloads that a broker has had stored, as clients published them",
        _at("stored", "raw_bytes"),
    ),
    MetricRow(
        "lexicast_payload_stored_bytes_total",
        COUNTER,
        BROKER,
        "",
        "The same payloads as they were stored",
        _at("stored", "stored_bytes"),
    ),
    MetricRow(
        "lexicast_link_saved_bytes_total",
        COUNTER,
        BROKER,
        "",
        "What dictionaries spared on links of clients that know them",
        _at("links", "saved_bytes"),
    ),
    MetricRow(
        "lexicast_certificate_expiry_timestamp_seconds",
        GAUGE,
        BROKER,
        "",
        "When the certificate of [tls] ends, since 1970",
        _until,
    ),
    MetricRow(
        "lexicast_messages_stored_total",
        COUNTER,
        COORDINATOR,
        "",
        "Publications that a coordinator ordered and stored",
        _at("published_records"),
    ),
    MetricRow(
        "lexicast_messages_refused_total",
        COUNTER,
        COORDINATOR,
        "reason",
        "Publications that a coordinator refused",
        _each("refused"),
    ),
    MetricRow(
        "lexicast_commit_seconds",
        HISTOGRAM,
        COORDINATOR,
        "",
        "Transactions with publications in them, until they were durable",
        _at("commits", "sum_s"),
    ),
    MetricRow(
        "lexicast_uncommitted_bytes",
        GAUGE,
        COORDINATOR,
        "",
        "What is ordered and not durable yet",
        _at("uncommitted_bytes"),
    ),
    MetricRow(
        "lexicast_groups_led",
        GAUGE,
        COORDINATOR,
        "",
        "Topic groups that a coordinator leads",
        _at("groups"),
    ),
    MetricRow(
        "lexicast_group_epoch",
        GAUGE,
        COORDINATOR,
        "",
        "The newest epoch among the groups that it leads: it grows with each change of leaders",
        _at("newest_epoch"),
    ),
    MetricRow(
        "lexicast_groups_few_copies",
        GAUGE,
        COORDINATOR,
        "",
        "Topic groups that it leads with fewer copies than they are to have",
        _at("few_copies"),
    ),
    MetricRow(
        "lexicast_failovers_total",
        COUNTER,
        COORDINATOR,
        "",
        "Topic groups that it began to lead after another coordinator had led them",
        _at("taken_over"),
    ),
    MetricRow(
        "lexicast_followers_lag_records",
        GAUGE,
        COORDINATOR,
        "",
        "What the slowest follower of one group lacks",
        _followers_lag,
    ),
    MetricRow(
        "lexicast_store_used_bytes",
        GAUGE,
        COORDINATOR,
        "",
        "What a coordinator's store holds",
        _at("store", "used_bytes"),
    ),
    MetricRow(
        "lexicast_store_free_bytes",
        GAUGE,
        COORDINATOR,
        "",
        "What is left to a coordinator's store",
        _at("store", "free_bytes"),
    ),
    MetricRow(
        "lexicast_store_full",
        GAUGE,
        COORDINATOR,
        "",
        "1 where publishing is refused for want of room",
        _at("store", "full"),
    ),
    MetricRow(
        "lexicast_store_full_in_seconds",
        GAUGE,
        COORDINATOR,
        "",
        "When the store is full at the present pace; absent where it does not grow",
        _at("full_in_s"),
    ),
    MetricRow(
        "lexicast_store_oldest_timestamp_seconds",
        GAUGE,
        COORDINATOR,
        "",
        "When the oldest publication that is kept was stored, since 1970",
        _oldest,
    ),
    MetricRow(
        "lexicast_store_topics",
        GAUGE,
        COORDINATOR,
        "",
        "Topics that a store knows",
        _at("store", "topics"),
    ),
    MetricRow(
        "lexicast_store_sessions",
        GAUGE,
        COORDINATOR,
        "",
        "Sessions that a store knows",
        _at("store", "sessions"),
    ),
    MetricRow(
        "lexicast_store_poisoned",
        GAUGE,
        COORDINATOR,
        "",
        "1 where a store has given up after an I/O error",
        _at("store", "poisoned"),
    ),
    MetricRow(
        "lexicast_store_damaged_rows",
        GAUGE,
        COORDINATOR,
        "",
        "Damaged places that are passed over",
        _damage,
    ),
    MetricRow(
        "lexicast_family_raw_bytes_total",
        COUNTER,
        SAMPLER,
        "family",
        "Sampled messages of a topic family, raw",
        _each("family_raw"),
    ),
    MetricRow(
        "lexicast_family_sent_bytes_total",
        COUNTER,
        SAMPLER,
        "family",
        "The same as dictionary-aware links carry them, dictionaries included",
        _each("family_sent"),
    ),
)
