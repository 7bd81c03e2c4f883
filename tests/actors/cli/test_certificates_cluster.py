"""`lexicast cert` and a cluster that shows what it made, in a Ray of its own: as the command says, renewed, refused;
and users who log in there, and are removed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.security.passwords import SHA512, hash_password, with_user

from ...support.up import OWN_ENVIRONMENT, lexicast_up

WAIT_S = 120.0
PORT = free_port()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lexicast.actors.cli", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=OWN_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `lexicast cert make` prints."""
    done = run("cert", "make", tmp_path_factory.mktemp("here") / "tls", "--client", "sensor-17")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.replace("8883", str(PORT))


@pytest.fixture(scope="module")
def folder(said: str) -> Path:
    (named,) = re.findall(r"made in (\S+): the authority \(ca\), server, sensor-17", said)
    return Path(named)


@pytest.fixture(scope="module")
def cluster(said: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    config = said.partition("lexicast.toml:\n")[2].partition("then:")[0]
    home = tmp_path_factory.mktemp("up")
    users = home / "users"
    users.write_bytes(with_user(b"", "ada", hash_password(b"a word", bytes(12), SHA512).text()))
    users.chmod(0o600)
    # (Else nobody would be let in by a password alone.)
    config = config.replace('client_certificates = "required"', 'client_certificates = "optional"')
    config += f'[security]\npassword_file = "{users}"\n'
    with lexicast_up(home, "--mqtt-port", "0", config=config) as ready:
        yield home, ready


def status(home: Path) -> dict[str, Any]:
    done = run("status", "--json", "--data-dir", home / "data")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_printed_works(said: str, cluster: tuple[Path, dict[str, Any]]) -> None:
    home, ready = cluster
    assert (ready["mqtt_tls_port"], ready["mqtt_tls_hosts"]) == (PORT, ["127.0.0.1"])
    assert f"  with TLS mqtts://127.0.0.1:{PORT}" in (home / "up.log").read_text()
    shell, python = said.partition("then:")[2].strip().split("\n\n")
    commands = [python] if shutil.which("mosquitto_pub") is None else [shell, python]
    for command in commands:
        environment = {**OWN_ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}:{OWN_ENVIRONMENT['PATH']}"}
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=WAIT_S, env=environment, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
    told = run("history", "hello", "--json", "--data-dir", home / "data")
    assert [json.loads(line)["payload"] for line in told.stdout.splitlines()] == ["world"] * len(commands)
    assert status(home)["brokers"]["broker-0"]["mqtt"]["tls"]["taken"] == 1


def test_new_certificates_are_taken_when_asked(cluster: tuple[Path, dict[str, Any]], folder: Path) -> None:
    home, _ = cluster
    certificate = folder / "server.crt"
    DevelopmentAuthority(folder).open().issue_server(["localhost"], days=5, name="next")
    old = certificate.read_bytes()
    certificate.write_bytes((folder / "next.crt").read_bytes())
    done = run("cert", "reload", "--data-dir", home / "data")
    assert done.returncode == 1
    assert re.match(r"lexicast: broker-0: tls.key = '\S+' does not belong to tls.certificate = ", done.stderr)
    (warning,) = status(home)["warnings"]
    assert warning.startswith("broker-0: tls.key = ")
    assert warning.endswith("; the old ones are used on")
    (folder / "server.key").write_bytes((folder / "next.key").read_bytes())
    done = run("cert", "reload", "--data-dir", home / "data")
    assert (done.stdout, done.stderr) == ("taken by 1 broker\n", "")
    (warning,) = status(home)["warnings"]
    assert re.match(r"broker-0: tls.certificate expires on .*, in 4 days: renew it", warning)
    assert old != certificate.read_bytes()
    done = run("security", "reload", "--data-dir", home / "data")
    assert (done.stdout, done.stderr) == ("nothing has changed\nthe files of [tls]: taken by 1 broker\n", "")
    assert status(home)["brokers"]["broker-0"]["mqtt"]["tls"]["taken"] == 3


def test_a_user_logs_in_and_is_removed(cluster: tuple[Path, dict[str, Any]], folder: Path) -> None:
    """(The broker shows its next certificate by now.)"""
    home, _ = cluster
    (home / "word").write_text("a word\n")
    place = ("--address", f"link:tls:localhost:{PORT}", "--ca-file", folder / "ca.crt")
    login = (*place, "--user", "ada", "--password-file", home / "word")
    done = run("pub", "a/b", "hello", *login)
    assert (done.returncode, done.stderr) == (0, "")
    assert run("history", "a/b", *login).stdout == "hello\n"
    assert "nobody is let in here without a login" in run("history", "a/b", *place).stderr
    assert "is for operators: it needs the cluster's key" in run("status", *place[:2]).stderr
    assert run("user", "remove", "ada", "--file", home / "users").returncode == 0
    done = run("security", "reload", "--data-dir", home / "data")
    assert (done.returncode, done.stderr) == (0, "")
    done = run("pub", "a/b", "hello", *login)
    assert done.returncode == 1
    assert "the login was refused" in done.stderr


def test_nothing_is_overwritten(folder: Path) -> None:
    done = run("cert", "make", folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lexicast: {folder}/ca.crt exists already: nothing is overwritten")
    done = run("cert", "make", folder, "--client", "other")
    assert done.stdout.startswith(f"made in {folder}: other\n")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_up_refuses_what_cannot_be_used(tmp_path: Path) -> None:
    made = DevelopmentAuthority(tmp_path / "tls").create()
    made.issue_server(["localhost"], days=-3)
    names = [f"tls.{knob}={made.path('server', kind)}" for knob, kind in (("certificate", "crt"), ("key", "key"))]
    given = ["--data-dir", tmp_path / "data", "--set", f"mqtt.tls_port={PORT}"]
    done = run("up", *given)
    assert (done.returncode, "mqtt.tls_port needs tls.certificate and tls.key" in done.stderr) == (2, True)
    done = run("up", *given, "--set", names[0], "--set", names[1])
    assert done.returncode == 2
    assert re.match(
        r"lexicast: tls.certificate = '\S+' expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC: renew it", done.stderr
    )
    assert not (tmp_path / "data").exists()
