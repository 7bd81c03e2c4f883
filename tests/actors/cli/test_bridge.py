"""`lexicast bridge`: what it says of files, and of what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.actors.cli.common import run_app
from lexicast.actors.cli.main import command_line
from lexicast.actors.launch.bridge_files import read_bridges
from lexicast.cluster.errors import ConfigError

BRIDGES = """
[site]
address = "mqtt://broker.example"
user = "lexicast"
password_file = "site.password"

[[site.topic]]
filter = "#"
local = "site/"

[[site.topic]]
filter = "commands/#"
direction = "in"
qos = 2
"""


def run(*arguments: str) -> int:
    return run_app(command_line(["bridge"]), ["bridge", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "site.password").write_text("very secret\n")
    written = tmp_path / "bridges.toml"
    written.write_text(BRIDGES)
    return written


def test_check_says_what_would_go_where(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(file)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "site: mqtt://broker.example:1883, MQTT 5, as lexicast",
        "  site/# -> #, QoS 1",
        "  commands/# <- commands/#, QoS 2",
    ]


def test_files_are_as_from_the_file_that_names_them(file: Path) -> None:
    ((_, secrets),) = read_bridges(str(file))
    assert secrets.password == b"very secret"
    assert "very secret" not in repr(secrets)
    assert read_bridges("") == ()


def test_what_is_wrong_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "site.password").unlink()
    assert run("check", str(file)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{file}: [site]: password_file: {file.parent}/site.password cannot be read: No such file" in told
    assert run("check", "none.toml") == 2
    assert capsys.readouterr().err == "lexicast: none.toml cannot be read: No such file or directory\n"
    file.write_text("")
    assert run("check", str(file)) == 2
    assert "there is no bridge in it" in capsys.readouterr().err
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_bridges(str(file))


def test_certificates_that_are_none_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "ca.pem").write_text("no certificate")
    file.write_text("[site]\naddress = 'mqtts://broker.example'\nca = 'ca.pem'\n[[site.topic]]\n")
    assert run("check", str(file)) == 2
    assert "[site]: ca, certificate or key: " in capsys.readouterr().err


def test_what_import_prints_is_a_file_that_check_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        "listener 1883\nconnection up\naddress 192.0.2.1\nremote_password very secret\ntopic a/# both 1 x/ y/\n"
    )
    assert run("import", str(conf)) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "not carried over: line 4, remote_password: put it into a file of its own, and name that as password_file"
    ]
    made = tmp_path / "bridges.toml"
    made.write_text(told.out)
    assert run("check", str(made)) == 0
    assert "x/a/# <-> y/a/#, QoS 1" in capsys.readouterr().out
    conf.write_text("listener 1883\n")
    assert run("import", str(conf)) == 2
    assert "there is no bridge in it" in capsys.readouterr().err
