"""`lexicast user`: a password file edited by hand, by Mosquitto's tool and by ours is the same file."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lexicast.actors.cli.main import command_line
from lexicast.cluster.security.passwords import parse_hash, read_passwords


def user(file: Path, *arguments: str, stdin: str = "") -> Result:
    """`lexicast user ... --file file`."""
    return CliRunner().invoke(command_line(["user"]), ["user", *arguments, "--file", str(file)], input=stdin)


def ok(file: Path, *arguments: str, stdin: str = "") -> str:
    found = user(file, *arguments, stdin=stdin)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passwords"


@pytest.mark.parametrize(("kind", "head"), [("argon2id", "$argon2id$"), ("pbkdf2", "$7$"), ("sha512", "$6$")])
def test_a_user_comes_is_tested_and_goes(file: Path, kind: str, head: str) -> None:
    ok(file, "add", "ada", "--hash", kind, stdin="a secret\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_passwords(file.read_bytes())["ada"].startswith(head)
    assert "ada may log in" in ok(file, "test", "ada", stdin="a secret")
    assert user(file, "test", "ada", stdin="another\n").exit_code == 1
    assert user(file, "test", "bob", stdin="a secret\n").exit_code == 1
    ok(file, "passwd", "ada", stdin="another\n")
    assert user(file, "test", "ada", stdin="a secret\n").exit_code == 1
    ok(file, "test", "ada", stdin="another\n")
    ok(file, "remove", "ada")
    assert read_passwords(file.read_bytes()) == {}


def test_a_generated_secret_is_printed_once_and_hashed_fast(file: Path) -> None:
    secret = ok(file, "add", "sensor", "--generate").strip()
    assert len(secret) == 22
    found = parse_hash(read_passwords(file.read_bytes())["sensor"])
    assert found.verify(secret.encode())
    assert not found.is_slow
    other = ok(file, "passwd", "sensor", "--generate").strip()
    assert other != secret
    assert parse_hash(read_passwords(file.read_bytes())["sensor"]).verify(other.encode())


def test_comments_and_other_users_stay(file: Path) -> None:
    ok(file, "add", "ada", stdin="a\n")
    row = file.read_text()
    file.write_text(f"# people\n{row}\n# devices\n")
    ok(file, "add", "bob", stdin="b\n")
    assert file.read_text().startswith(f"# people\n{row}\n# devices\nbob:")
    ok(file, "remove", "bob")
    assert file.read_text() == f"# people\n{row}\n# devices\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("add", "ada"), "x\n", "is a user already"),
        (("add", "a:b"), "x\n", "is no user's name"),
        (("add", "bob"), "\n", "an empty password is none"),
        (("add", "bob", "--hash", "md5"), "x\n", "write one of argon2id, pbkdf2, sha512"),
        (("passwd", "bob"), "x\n", "there is no user 'bob'"),
        (("remove", "bob"), "", "there is no user 'bob'"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_and_changes_nothing(
    file: Path, arguments: tuple[str, ...], stdin: str, says: str
) -> None:
    ok(file, "add", "ada", "--generate")
    before = file.read_bytes()
    found = user(file, *arguments, stdin=stdin)
    assert found.exit_code == 2
    assert says in found.output
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_with_a_malformed_line_is_left_alone(file: Path) -> None:
    file.write_text("ada:$6$x\n")
    found = user(file, "add", "bob", "--generate")
    assert found.exit_code == 2
    assert f"{file}, line 1" in found.output
    assert file.read_text() == "ada:$6$x\n"


def test_a_file_that_is_not_there_is_made_by_add_alone(file: Path) -> None:
    for arguments in (("remove", "ada"), ("passwd", "ada", "--generate"), ("list",), ("test", "ada")):
        found = user(file, *arguments, stdin="x\n")
        assert found.exit_code == 1
        assert "No such file" in found.output
        assert not file.exists()
    ok(file, "add", "ada", "--generate")
    assert file.exists()


def test_who_could_read_the_file_still_can(file: Path) -> None:
    ok(file, "add", "ada", "--generate")
    file.chmod(0o640)
    ok(file, "passwd", "ada", "--generate")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    ok(link, "add", "ada", "--generate")
    assert link.is_symlink()
    assert list(read_passwords(file.read_bytes())) == ["ada"]


def test_many_edit_it_at_once(file: Path) -> None:
    """Each by a process of its own would take a second: the lock is the file's, whoever holds it."""
    from lexicast.actors.cli.user import _edited

    def edit(name: str) -> None:
        for at in range(5):
            with _edited(file, create=True) as data:
                data += f"{name}{at}:$6$AAAA${'A' * 86}==\n".encode()

    threads = [threading.Thread(target=edit, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_passwords(file.read_bytes())) == 20


def test_users_are_listed(file: Path) -> None:
    ok(file, "add", "ada", stdin="a\n")
    ok(file, "add", "sensor", "--generate")
    assert "ada     argon2id\nsensor  sha512\n" in ok(file, "list")
    assert json.loads(ok(file, "list", "--json")) == {"ada": "argon2id", "sensor": "sha512"}


def test_the_file_of_the_configuration_is_the_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    app = command_line(["user"])
    none = CliRunner().invoke(app, ["user", "list"])
    assert none.exit_code == 2
    assert "which password file?" in none.output
    monkeypatch.setenv("LEXICAST_SECURITY__PASSWORD_FILE", str(file))
    assert CliRunner().invoke(app, ["user", "add", "ada", "--generate"]).exit_code == 0
    assert list(read_passwords(file.read_bytes())) == ["ada"]


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed")
def test_mosquitto_passwd_edits_our_file_and_we_its(file: Path) -> None:
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(file), "ada", "first"], check=True, capture_output=True)
    ok(file, "add", "bob", "--hash", "pbkdf2", stdin="second\n")
    subprocess.run(["mosquitto_passwd", "-b", str(file), "eve", "third"], check=True, capture_output=True)
    for name, password in (("ada", "first"), ("bob", "second"), ("eve", "third")):
        ok(file, "test", name, stdin=f"{password}\n")


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (("add", "a:b"), "x\n"),
        (("add", "bob"), "\n"),
        (("add", "bob", "--hash", "md5"), "x\n"),
        (("passwd", "bob"), "x\n"),
    ],
)
def test_where_adding_fails_no_empty_file_is_left(file: Path, arguments: tuple[str, ...], stdin: str) -> None:
    assert user(file, *arguments, stdin=stdin).exit_code != 0
    assert [*file.parent.iterdir()] == []


def test_a_file_that_cannot_be_written_leaves_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lexicast.actors.cli.user.write_whole", full)
    found = user(file, "add", "ada", stdin="x\n")
    assert "No space left on device" in found.output
    assert [*file.parent.iterdir()] == []
    file.write_bytes(b"")
    assert user(file, "add", "ada", stdin="x\n").exit_code == 1
    assert file.read_bytes() == b""  # it was there before


def test_nobody_waits_for_who_types_a_password(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(file, "add", "ada", "--generate")
    others: list[str] = []

    def typing(name: str, confirm: bool) -> bytes:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is held
        if name == "bob":
            others.append(ok(file, "add", "eve", "--generate"))
        return b"a secret"

    monkeypatch.setattr("lexicast.actors.cli.user._asked", typing)
    ok(file, "add", "bob")
    assert [*read_passwords(file.read_bytes())] == ["ada", "eve", "bob"]
    assert len(others) == 1
