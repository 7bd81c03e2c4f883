"""Where nodes listen and at which addresses they are reached: what `up` prints can be dialled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.cli.cluster import _where
from lexicast.actors.launch.node_addresses import NodeAddresses
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError

ONE = {"a": "192.0.2.10"}
THREE = {"a": "192.0.2.10", "b": "192.0.2.11", "c": "192.0.2.12"}


def places(nodes: dict[str, str], **knobs: Any) -> NodeAddresses:
    return NodeAddresses(Config().replaced(**knobs), nodes)


@pytest.mark.parametrize(
    ("nodes", "knobs", "links", "listens", "reached"),
    [
        (ONE, {}, "127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        (ONE, {"mqtt__host": "0.0.0.0"}, "127.0.0.1", "0.0.0.0", ["192.0.2.10"]),
        (ONE, {"node__host": "0.0.0.0"}, "192.0.2.10", "0.0.0.0", ["192.0.2.10"]),
        (ONE, {"node__host": "::"}, "192.0.2.10", "::", ["192.0.2.10"]),
        (ONE, {"node__host": "192.0.2.9"}, "192.0.2.9", "192.0.2.9", ["192.0.2.9"]),
        (THREE, {}, "192.0.2.10", "192.0.2.10", list(THREE.values())),
        (THREE, {"mqtt__host": "0.0.0.0"}, "192.0.2.10", "0.0.0.0", list(THREE.values())),
        (THREE, {"node__host": "0.0.0.0"}, "192.0.2.10", "0.0.0.0", list(THREE.values())),
        (THREE, {"mqtt__host": "127.0.0.1"}, "192.0.2.10", "127.0.0.1", ["127.0.0.1"]),
    ],
)
def test_addresses(nodes: dict[str, str], knobs: dict[str, str], links: str, listens: str, reached: list[str]) -> None:
    found = places(nodes, **knobs)
    found.check("")
    assert (found.link_host("a"), found.mqtt_host("a"), found.mqtt_host()) == (links, listens, listens)
    assert found.reached_at() == reached


@pytest.mark.parametrize("key", ["node__host", "mqtt__host"])
def test_one_machines_address_is_refused_for_several(key: str) -> None:
    with pytest.raises(ConfigError, match="is one machine's address, and this Ray has 3 nodes"):
        places(THREE, **{key: "192.0.2.10"}).check()


@pytest.mark.parametrize(
    ("nodes", "knobs", "says"),
    [
        (ONE, {}, ""),
        (ONE, {"mqtt__allow_anonymous": "always"}, ""),
        (ONE, {"mqtt__allow_anonymous": "always", "mqtt__host": "0.0.0.0"}, "whoever reaches the MQTT port"),
        (ONE, {"mqtt__host": "0.0.0.0"}, "clients of other machines are refused"),
        (THREE, {}, "clients of other machines are refused"),
        (THREE, {"mqtt__allow_anonymous": "always"}, "whoever reaches the MQTT port"),
        (THREE, {"mqtt__allow_anonymous": "never"}, "MQTT clients are refused"),
    ],
)
def test_who_is_let_in_is_told_where_others_reach_the_port(
    nodes: dict[str, str], knobs: dict[str, str], says: str
) -> None:
    notice = places(nodes, **knobs).notice()
    assert says in notice
    assert bool(says) == bool(notice)


ALWAYS = {"mqtt__allow_anonymous": "always"}
EVERYWHERE = {"mqtt__host": "0.0.0.0"}
TLS = {"mqtt__tls_port": 8883, "mqtt__tls_host": "0.0.0.0", "tls__certificate": "c", "tls__key": "k"}
CERTIFIED = {"tls__client_certificates": "required", "tls__client_ca": "ca"}


@pytest.mark.parametrize("nodes", [ONE, THREE])
def test_who_is_open_to_strangers_is_refused_unless_it_is_said(nodes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"whoever reaches.*192\.0\.2\.10.*acl_file.*--insecure"):
        places(nodes, **ALWAYS, **EVERYWHERE).check("")
    places(nodes, **ALWAYS, **EVERYWHERE, security__insecure=True).check("")
    places(nodes, **EVERYWHERE).check("")


@pytest.mark.parametrize(
    ("knobs", "is_open"),
    [
        (ALWAYS, False),
        (ALWAYS | EVERYWHERE, True),
        (ALWAYS | {"mqtt__host": "192.0.2.10"}, True),
        (ALWAYS | EVERYWHERE | {"security__acl_file": "rules"}, False),
        (ALWAYS | EVERYWHERE | {"security__password_file": "users"}, True),
        (ALWAYS | TLS, True),
        (ALWAYS | TLS | CERTIFIED, False),
        (ALWAYS | TLS | CERTIFIED | EVERYWHERE, True),
        (ALWAYS | {"mqtt__ws_port": 8083, "mqtt__ws_host": "0.0.0.0"}, True),
        (ALWAYS | {"mqtt__ws_host": "0.0.0.0"}, False),
        (ALWAYS | TLS | CERTIFIED | {"mqtt__wss_port": 8084, "mqtt__wss_host": "0.0.0.0"}, False),
        (EVERYWHERE, False),
    ],
)
def test_who_is_open(knobs: dict[str, Any], is_open: bool) -> None:
    found = places(ONE, **knobs)
    assert found.is_open() is is_open
    assert ("whoever reaches the MQTT port" in found.notice()) is is_open


def test_an_own_ray_without_tokens_is_refused_where_others_reach_the_machine() -> None:
    with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE=disabled.*--insecure"):
        places(ONE, **EVERYWHERE).check("disabled")
    places(ONE, **EVERYWHERE).check("token")
    places(ONE, **EVERYWHERE, security__insecure=True).check("disabled")
    places(ONE).check("disabled")
    places(THREE).check("disabled")  # that Ray is not ours: `check_closed` looks at it


def test_up_prints_every_address() -> None:
    run = SimpleNamespace(
        cluster_id="c" * 16,
        mqtt_hosts=["192.0.2.10", "::1"],
        mqtt_port=1883,
        mqtt_tls_hosts=["192.0.2.10"],
        mqtt_tls_port=8883,
        mqtt_ws_hosts=["192.0.2.10"],
        mqtt_ws_port=8083,
        mqtt_wss_hosts=["::1"],
        mqtt_wss_port=8084,
        pages=["https://192.0.2.10:18080/"],
        data_dir="/data",
        ray_address="192.0.2.10:6379",
        namespace="lexicast",
    )
    said = _where(run).splitlines()
    assert "  MQTT     mqtt://192.0.2.10:1883 mqtt://[::1]:1883" in said
    assert "  with TLS mqtts://192.0.2.10:8883" in said
    assert "  browsers ws://192.0.2.10:8083/mqtt wss://[::1]:8084/mqtt" in said


def test_a_console_beyond_loopback_is_encrypted_or_meant_to_be_open() -> None:
    own = {"http__port": 18080, "http__host": "0.0.0.0"}
    with pytest.raises(ConfigError, match=r"http\.host = '0\.0\.0\.0' is reached from other machines"):
        places(ONE, **own).check("token")
    places(ONE, **own, security__insecure=True).check("token")
    encrypted = {**own, "tls__certificate": "server.crt", "tls__key": "server.key"}
    places(ONE, **encrypted).check("token")
    assert places(ONE, **encrypted).pages() == ["https://192.0.2.10:18080/"]
    assert places(THREE, http__port=18080).pages() == ["http://127.0.0.1:18080/"]
    with pytest.raises(ConfigError, match=r"http\.host = '192\.0\.2\.10' is one machine's address"):
        places(THREE, **{**encrypted, "http__host": "192.0.2.10"}).check("token")
