"""Who is let in: by what CONNECT shows and by the addresses of the connection's ends."""

from __future__ import annotations

from typing import Any

import pytest

from lexicast.actors.mqtt.codec.packets import V5, V311, Connect
from lexicast.actors.mqtt.login.admission import admission, lets_strangers_in
from lexicast.actors.status.report import warnings
from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.addresses import is_same_machine

LET_IN, BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED = 0x00, 0x86, 0x87
HERE, ELSEWHERE = "192.0.2.10", "192.0.2.11"
TLS = {"mqtt__tls_port": 8883, "mqtt__tls_host": "0.0.0.0", "tls__certificate": "c", "tls__key": "k"}


def code(
    config: Config, peer: str, own: str = HERE, user_name: str | None = None, password: bytes | None = None
) -> int:
    version = V5 if user_name is None else V311
    return admission(config, Connect(version, "c", True, 0, None, user_name, password), peer, own)


@pytest.mark.parametrize(
    ("allowed", "here", "elsewhere"),
    [
        ("loopback", LET_IN, NOT_AUTHORIZED),
        ("always", LET_IN, LET_IN),
        ("never", NOT_AUTHORIZED, NOT_AUTHORIZED),
        ("auto", LET_IN, NOT_AUTHORIZED),
    ],
)
def test_the_address_decides_about_who_shows_nothing(allowed: str, here: int, elsewhere: int) -> None:
    config = Config().replaced(mqtt__allow_anonymous=allowed)
    assert code(config, "127.0.0.1") == code(config, HERE) == here
    assert code(config, ELSEWHERE) == elsewhere


def test_who_shows_nothing_is_not_let_in_where_there_are_users() -> None:
    config = Config().replaced(security__password_file="passwords")
    assert code(config, "127.0.0.1") == NOT_AUTHORIZED
    assert code(config.replaced(mqtt__allow_anonymous="loopback"), "127.0.0.1") == LET_IN


@pytest.mark.parametrize("shown", [{"user_name": "me"}, {"user_name": "me", "password": b"x"}, {"password": b"x"}])
def test_credentials_are_refused_whoever_shows_them(shown: dict[str, str | bytes]) -> None:
    for allowed in ("loopback", "always", "never"):
        connect = Connect(V5, "c", True, 0, None, shown.get("user_name"), shown.get("password"))  # type: ignore[arg-type]  # by key
        assert (
            admission(Config().replaced(mqtt__allow_anonymous=allowed), connect, "127.0.0.1", HERE)
            == BAD_USER_NAME_OR_PASSWORD
        )


def test_ignored_credentials_prove_nothing() -> None:
    config = Config().replaced(mqtt__credentials="ignore")
    assert code(config, "127.0.0.1", user_name="me") == LET_IN
    assert code(config, ELSEWHERE, user_name="me", password=b"x") == NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("peer", "own", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.10", "192.0.2.10", True),
        ("::ffff:192.0.2.10", "192.0.2.10", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("192.0.2.11", "192.0.2.10", False),
        ("192.0.2.10", "", False),
        ("", "192.0.2.10", False),
        ("", "", False),
    ],
)
def test_both_ends_on_one_machine(peer: str, own: str, same: bool) -> None:
    assert is_same_machine(peer, own) is same


@pytest.mark.parametrize(
    ("knobs", "is_open"),
    [
        ({}, False),
        ({"mqtt__host": "0.0.0.0"}, True),
        ({"mqtt__host": "::"}, True),
        ({"mqtt__host": "a.example"}, True),
        ({"mqtt__host": "localhost"}, False),
        ({"node__host": "192.0.2.1"}, True),
        ({"mqtt__host": "0.0.0.0", "security__acl_file": "rules"}, False),
        ({"mqtt__host": "0.0.0.0", "mqtt__allow_anonymous": "never"}, False),
        (TLS, True),
        (TLS | {"tls__client_certificates": "required", "tls__client_ca": "ca"}, False),
    ],
)
def test_who_is_open_to_strangers(knobs: dict[str, Any], is_open: bool) -> None:
    config = Config().replaced(**{"mqtt__allow_anonymous": "always"} | knobs)
    assert lets_strangers_in(config) is is_open
    warned = [text for text in warnings(snapshot(config)) if "whoever reaches its MQTT port" in text]
    assert bool(warned) is is_open


def snapshot(config: Config) -> dict[str, Any]:
    """What a broker with this configuration says of itself, as status shows it."""
    brokers = {"broker-0": {"mqtt": {"open": lets_strangers_in(config)}}}
    return {"time": 0.0, "coordination": {}, "coordinators": {}, "brokers": brokers}
