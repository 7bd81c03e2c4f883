"""`lexicast pub | sub | history` of users, who have no key; what is for operators says so."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lexicast.actors.cli.bus import find_bus
from lexicast.actors.cli.main import command_line
from lexicast.actors.client.address import ADDRESS_VARIABLE
from lexicast.actors.link.credentials import CA_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE
from lexicast.cluster.security.passwords import SHA512, hash_password, with_user

from ...support.mqtt_harness import HOST, Served, served, unique

WORDS = with_user(b"", "ada", hash_password(b"a word", b"salt" * 3, SHA512).text())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(passwords=WORDS, rules=b"user ada\ntopic readwrite plant/#\n") as running:
        yield running


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One without a key or a cluster of its own; there are a password file and a wrong one."""
    for name in (ADDRESS_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    # An earlier test's handler writes into what it had for an error's stream, and the logging module tells that here.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LEXICAST_NODE__DATA_DIR", str(tmp_path / "none"))
    (tmp_path / "word").write_text("a word\n")
    (tmp_path / "wrong").write_text("another\n")
    (tmp_path / "empty").write_text("\n")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command_line([arguments[0]]), [*arguments])


def address(cluster: Served) -> str:
    return f"link:tcp:{HOST}:{cluster.port}"


def test_a_user_publishes_and_reads_the_past(cluster: Served, machine: Path) -> None:
    topic, login = unique("plant/"), ["--address", address(cluster), "-u", "ada", "--password-file", f"{machine}/word"]
    assert run("pub", topic, "hello", *login).exit_code == 0
    assert run("history", topic, *login).stdout == "hello\n"
    assert run("history", topic, "--count", *login).stdout == "1\n"
    found = run("sub", topic, "--since", "1h", "-n", "1", "--json", *login)
    assert json.loads(found.stdout)["payload"] == "hello"
    refused = run("pub", "other/x", "hello", *login)
    assert refused.exit_code == 1
    assert "user 'ada' may not publish to 'other/x'" in refused.output
    assert "user 'ada' may not read" in run("sub", "other/#", *login).output


def test_the_environment_logs_in_too(cluster: Served, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = unique("plant/")
    monkeypatch.setenv("LEXICAST_ADDRESS", address(cluster))
    monkeypatch.setenv("LEXICAST_USER", "ada")
    monkeypatch.setenv("LEXICAST_PASSWORD_FILE", str(machine / "word"))
    assert run("pub", topic, "hello").exit_code == 0
    assert run("history", topic, "--user", "ada").stdout == "hello\n"
    assert "operators" in run("status").output


def test_who_gives_certificates_alone_logs_in_as_the_environment_says(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def login() -> tuple[str | None, bytes | None, bytes | None]:
        found = find_bus("link:tls:here:1", None, None, None, None, machine / "ca.crt")
        word, token = found["password"], found["token"]
        return found["user"], None if word is None else word(), None if token is None else token()

    assert login() == (None, None, None)
    monkeypatch.setenv(TOKEN_VARIABLE, str(machine / "word"))
    assert login() == (None, None, b"a word")
    monkeypatch.setenv(USER_VARIABLE, "ada")
    assert login() == ("ada", None, b"a word")
    monkeypatch.setenv(PASSWORD_VARIABLE, str(machine / "wrong"))
    assert login() == ("ada", b"another", None)


def test_an_address_of_users_in_the_environment_is_one_without_a_login_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """(Else the certificates that the environment names would not be those that count.)"""
    monkeypatch.setenv(ADDRESS_VARIABLE, "link:tls:here:1")
    assert find_bus(None, None, None, None, None, None) == {"address": None}
    monkeypatch.setenv(ADDRESS_VARIABLE, "auto")
    assert "data_dir" in find_bus(None, None, None, None, None, None)


def test_a_user_traces_what_it_may_read(cluster: Served, machine: Path) -> None:
    topic, login = unique("plant/"), ["--address", address(cluster), "-u", "ada", "--password-file", f"{machine}/word"]
    sent = json.loads(run("trace", topic, "--send", "--json", *login).stdout)
    assert {hop["what"] for hop in sent["hops"]} >= {"received", "placed", "committed", "given", "arrived", "answered"}
    for target in (topic, sent["position"]):
        place = json.loads(run("trace", target, "--json", *login).stdout)
        assert (place["topic"], place["position"]) == (topic, sent["position"])
        assert "clients" not in place["brokers"]["broker-0"]["subscribers"]  # who they are is for operators
    for arguments in (("other/x",), ("other/x", "--send"), ("$sdc/x", "--send")):
        refused = run("trace", *arguments, *login)
        assert refused.exit_code == 1, refused.output
        assert "user 'ada' may not read" in refused.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--user", "ada", "--password-file", "wrong"), "the login was refused"),
        (("--user", "bob", "--password-file", "word"), "the login was refused"),
        (("--token-file", "word"), "the login was refused"),
        ((), "nobody is let in here without a login"),
        (("--user", "ada"), "give password or token too"),
        (("--user", "ada", "--password-file", "missing"), "cannot be read"),
        (("--user", "ada", "--password-file", "empty"), "has no first line"),
        (("--user", "ada", "--password-file", "word", "--data-dir", "."), "for operators, or a login, not both"),
    ],
)
def test_who_is_not_let_in_is_told_in_a_line(
    cluster: Served, machine: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(machine)
    found = run("pub", "plant/x", "hello", "--address", address(cluster), *options)
    assert found.exit_code in (1, 2)
    assert says in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("security", "reload"),
        ("cert", "reload"),
        ("node", "drain", "x"),
        ("family", "show"),
        ("recover",),
    ],
)
def test_what_is_for_operators_says_so(cluster: Served, command: tuple[str, ...]) -> None:
    found = run(*command, "--address", address(cluster))
    assert found.exit_code != 0
    assert "is for operators: it needs the cluster's key" in found.output


@pytest.mark.parametrize("command", [("channel", "list"), ("export", "x")])
def test_the_jobs_are_for_operators_too(cluster: Served, command: tuple[str, ...]) -> None:
    """(They are programs of their own.)"""
    line = [sys.executable, "-m", "lexicast.raydp_jobs.cli", *command, "--address", address(cluster)]
    found = subprocess.run(line, capture_output=True, text=True)
    assert found.returncode != 0
    assert "is for operators: it needs the cluster's key" in found.stderr


def test_without_anything_it_is_said_how_users_log_in() -> None:
    found = run("history", "#")
    assert found.exit_code == 1
    assert "users without its data folder log in at a broker" in found.output
