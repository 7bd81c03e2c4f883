"""`lexicast security reload`: the files of [security] given, those of [tls] taken where there is a port for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.cli import cert, security
from lexicast.actors.cli.common import run_app
from lexicast.actors.cli.main import command_line
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.cluster.security.passwords import SHA512, hash_password

ROW = hash_password(b"x", bytes(12), SHA512).text()


class Asked:
    """A cluster of two brokers that answers as it is to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, paths: dict[str, str], has_tls: bool) -> None:
        self.paths, self.has_tls = paths, has_tls
        self.version = 7
        self.silent: list[str] = []
        self.wrong = ""
        self.reloaded: list[str] = []
        self.refused: list[str] = []
        monkeypatch.setattr(security, "resolver", lambda *_: self._endpoints)
        monkeypatch.setattr(security, "ask_any_broker", self._any)
        monkeypatch.setattr(cert, "ask_broker", self._one)

    async def _endpoints(self) -> list[Endpoint]:
        return [Endpoint(name, (), "", b"") for name in ("broker-0", "broker-1")]

    async def _any(self, _: Any, method: str, *arguments: Any) -> Any:
        if method == "security_give":
            self.version += 1
            return self.version, ["users: 1 added"]
        if method == "security_refuse":
            self.refused.append(arguments[0])
            return None
        broker = {"security": {"version": self.version}, "mqtt": {"tls": {"port": 1} if self.has_tls else None}}
        brokers = {
            each.name: {"error": "no answer"} if each.name in self.silent else broker
            for each in await self._endpoints()
        }
        return {"brokers": brokers, "coordination": {"security": {"paths": self.paths}}}

    async def _one(self, endpoint: Endpoint, method: str) -> str:
        assert method == "tls_reload"
        self.reloaded.append(endpoint.name)
        return self.wrong


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "passwords"
    path.write_text(f"ada:{ROW}\n")
    path.chmod(0o600)
    return {"passwords": str(path)}


def reload() -> int:
    return run_app(command_line(["security"]), ["security", "reload"])


def test_both_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paths: dict[str, str]
) -> None:
    asked = Asked(monkeypatch, paths, has_tls=True)
    assert reload() == 0
    assert capsys.readouterr().out == "users: 1 added\nthe files of [tls]: taken by 2 brokers\n"
    assert asked.reloaded == ["broker-0", "broker-1"]


def test_without_a_port_for_tls_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paths: dict[str, str]
) -> None:
    asked = Asked(monkeypatch, paths, has_tls=False)
    assert reload() == 0
    assert (capsys.readouterr().out, asked.reloaded) == ("users: 1 added\n", [])


def test_a_cluster_with_tls_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(monkeypatch, {}, has_tls=True)
    assert reload() == 0
    assert capsys.readouterr().out == "the files of [tls]: taken by 2 brokers\n"
    asked.has_tls = False
    assert reload() == 2
    assert "started without files of security" in capsys.readouterr().err


def test_certificates_that_cannot_be_used_are_told_after_what_was_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paths: dict[str, str]
) -> None:
    asked = Asked(monkeypatch, paths, has_tls=True)
    asked.wrong = "tls.key = 'k' cannot be read"
    assert reload() == 1
    told = capsys.readouterr()
    assert told.out == "users: 1 added\n"
    assert told.err.startswith("lexicast: broker-0: tls.key = 'k' cannot be read; broker-1: ")


@pytest.mark.parametrize("content", [b"ada\n", b"\xff\n", b"ada:" + ROW.encode()[:-9]])
def test_a_file_with_something_wrong_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paths: dict[str, str], content: bytes
) -> None:
    asked = Asked(monkeypatch, paths, has_tls=True)
    path = Path(paths["passwords"])
    path.write_bytes(content)
    assert reload() == 2
    assert capsys.readouterr().err.startswith(f"lexicast: security.password_file = '{path}', line 1: ")
    assert ([len(asked.refused)], asked.version, asked.reloaded) == ([1], 7, [])
    path.unlink()
    assert reload() == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    path.mkdir()
    assert reload() == 2
    assert "is no file" in capsys.readouterr().err
    assert len(asked.refused) == 1


def test_who_gives_no_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paths: dict[str, str]
) -> None:
    asked = Asked(monkeypatch, paths, has_tls=False)
    asked.silent = ["broker-1"]
    assert reload() == 0
    assert "broker-1 gave no answer" in capsys.readouterr().err
