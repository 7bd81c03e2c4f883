"""`lexicast security import`: what follows from a mosquitto.conf, and what is told of the rest."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lexicast.actors.cli.common import run_app
from lexicast.actors.cli.main import command_line
from lexicast.cluster.config.tables import load_config

CONF = """# comment
per_listener_settings false
listener 1884 127.0.0.1
listener 8883
cafile /etc/ca.crt
certfile /etc/server.crt
keyfile /etc/server.key
require_certificate true
use_identity_as_username true
listener 9001
protocol websockets
password_file /etc/mosquitto/passwd
acl_file /etc/mosquitto/acl
allow_anonymous false
persistence true
log_dest stdout
connection upstream
max_connections 500
max_keepalive 0
"""


def run(file: Path) -> int:
    return run_app(command_line(["security"]), ["security", "import", str(file)])


def test_what_can_be_is_carried_over_and_the_rest_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(CONF)
    assert run(file) == 0
    told = capsys.readouterr()
    assert tomllib.loads(told.out) == {
        "mqtt": {
            "port": 1884,
            "host": "127.0.0.1",
            "tls_port": 8883,
            "tls_host": "0.0.0.0",
            "ws_port": 9001,
            "ws_host": "0.0.0.0",
            "allow_anonymous": "never",
            "connections_max": 500,
        },
        "tls": {
            "client_ca": "/etc/ca.crt",
            "certificate": "/etc/server.crt",
            "key": "/etc/server.key",
            "client_certificates": "required",
            "user_from": "cn",
        },
        "security": {"password_file": "/etc/mosquitto/passwd", "acl_file": "/etc/mosquitto/acl"},
    }
    made = tmp_path / "lexicast.toml"
    made.write_text(told.out)
    assert load_config(made).security.acl_file == "/etc/mosquitto/acl"
    lines = told.err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"not carried over: line {n}" for n in (2, 17, 19)]
    assert [line for line in told.out.splitlines() if line.startswith("#")] == [f"# {line}" for line in lines]


@pytest.mark.parametrize(
    ("text", "mqtt"),
    [
        ("", {"port": 1883}),
        # Where a listener is named and nobody can log in Mosquitto lets nobody in, of this machine neither.
        ("port 1999\nbind_address 10.0.0.1", {"port": 1999, "host": "10.0.0.1", "allow_anonymous": "never"}),
        ("listener 1883", {"port": 1883, "host": "0.0.0.0", "allow_anonymous": "never"}),
        ("listener 1883\npassword_file p", {"port": 1883, "host": "0.0.0.0"}),
        # Each listener's own is one for all here: the strictest.
        (
            "listener 1883\nallow_anonymous false\nlistener 1884\nallow_anonymous true",
            {"port": 1883, "host": "0.0.0.0", "allow_anonymous": "never"},
        ),
        (
            "listener 1884\nallow_anonymous true\nlistener 1883\nallow_anonymous false",
            {"port": 1884, "host": "0.0.0.0", "allow_anonymous": "never"},
        ),
        (
            "listener 8883 ::\ncertfile a\nkeyfile b\ncafile c",
            {"tls_port": 8883, "tls_host": "::", "host": "127.0.0.1", "allow_anonymous": "never"},
        ),
        (
            "listener 9001\nprotocol websockets\nlistener 9002 ::1\nprotocol websockets\ncertfile a\nkeyfile b\n"
            "password_file p",
            {"ws_port": 9001, "ws_host": "0.0.0.0", "wss_port": 9002, "wss_host": "::1", "host": "127.0.0.1"},
        ),
    ],
)
def test_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, mqtt: dict[str, object]) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(text)
    assert run(file) == 0
    assert tomllib.loads(capsys.readouterr().out)["mqtt"] == mqtt


@pytest.mark.parametrize(
    ("text", "why"),
    [("listener many", "line 1: 'many' is no number"), ("max_packet_size 20", "packet_bytes_max"), ("\udce9", "UTF-8")],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert run(file) == 2
    assert why in capsys.readouterr().err


def test_whatever_a_path_holds_is_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mosquitto.conf"
    path = '/etc/\x01"\\\u00e9'
    file.write_text(f"password_file {path}")
    assert run(file) == 0
    assert tomllib.loads(capsys.readouterr().out)["security"] == {"password_file": path}
