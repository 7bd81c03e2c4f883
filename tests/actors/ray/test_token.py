"""Ray's token towards the user's own cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lexicast.actors.ray.token import MODE_VARIABLE, TOKEN_VARIABLES, make_own_token, use_own_token


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in (MODE_VARIABLE, *TOKEN_VARIABLES):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards, whatever the code under test sets
        monkeypatch.delenv(name)


def mode() -> str | None:
    return os.environ.get(MODE_VARIABLE)


def test_without_a_token_ray_decides() -> None:
    use_own_token()
    assert mode() is None


def test_the_token_in_the_users_home_is_shown(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("secret")
    use_own_token()
    assert mode() == "token"


@pytest.mark.parametrize("name", TOKEN_VARIABLES)
def test_a_token_in_the_environment_is_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "somewhere")
    use_own_token()
    assert mode() == "token"


def test_what_the_user_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "disabled")
    monkeypatch.setenv(TOKEN_VARIABLES[0], "secret")
    use_own_token()
    assert mode() == "disabled"


def test_a_ray_that_was_imported_before_shows_it_too(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("secret")
    program = """
import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from lexicast.actors.ray.token import use_own_token
before = is_token_auth_enabled()
use_own_token()
print(before, is_token_auth_enabled())
"""
    environment = {"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True"]


def test_a_token_is_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_own_token()
    finally:
        os.umask(before)
    file = tmp_path / ".ray/auth_token"
    token = file.read_text()
    assert len(token) == 64
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    make_own_token()
    assert file.read_text() == token


def test_a_token_that_everybody_could_read_is_the_users_alone_from_then_on(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("secret")
    (tmp_path / ".ray/auth_token").chmod(0o644)
    make_own_token()
    assert (tmp_path / ".ray/auth_token").read_text() == "secret"
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o777 == 0o600


def test_no_token_is_made_where_the_user_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "disabled")
    make_own_token()
    monkeypatch.delenv(MODE_VARIABLE)
    monkeypatch.setenv(TOKEN_VARIABLES[0], "secret")
    make_own_token()
    assert not (tmp_path / ".ray").exists()
