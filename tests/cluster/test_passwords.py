"""Password files as Mosquitto has them: read, written, verified; what is malformed is refused, and says where."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.likenesses import NO_LIKENESS, likenesses
from lexicast.cluster.security.passwords import (
    ITERATIONS_MAX,
    KINDS,
    MEMORY_KIB_MAX,
    PBKDF2,
    SALT_BYTES,
    SHA512,
    check_user,
    hash_password,
    parse_hash,
    read_passwords,
    with_user,
    without_user,
)

# As `mosquitto_passwd` writes them for "secret", -H sha512 and sha512-pbkdf2.
SALT = bytes(range(12))
SIX = f"$6${b64encode(SALT).decode()}${b64encode(hashlib.sha512(b'secret' + SALT).digest()).decode()}"
SEVEN_DIGEST = hashlib.pbkdf2_hmac("sha512", b"secret", SALT, 101, 64)
SEVEN = f"$7$101${b64encode(SALT).decode()}${b64encode(SEVEN_DIGEST).decode()}"

names = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters=":"), min_size=1, max_size=20
).filter(lambda name: name == name.strip(" \t\r\v\f") and name[0] != "#")


@pytest.mark.parametrize("written", [SIX, SEVEN])
def test_what_mosquitto_writes_is_verified(written: str) -> None:
    found = parse_hash(written)
    assert found.verify(b"secret")
    assert not found.verify(b"Secret")
    assert not found.verify(b"")
    assert found.text() == written


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_and_verified(kind: str) -> None:
    made = hash_password(b"p\xc3\xa4ss\0word", bytes(range(SALT_BYTES[kind])), kind)
    again = parse_hash(made.text())
    assert again == made
    assert again.verify(b"p\xc3\xa4ss\0word")
    assert not again.verify(b"p\xc3\xa4ss")
    assert made.is_slow == (kind != SHA512)


def test_a_phc_string_of_another_program_is_verified() -> None:
    argon2 = pytest.importorskip("cryptography.hazmat.primitives.kdf.argon2").Argon2id
    phc = argon2(salt=bytes(range(64)), length=64, iterations=1, lanes=2, memory_cost=1024).derive_phc_encoded(b"x")
    found = parse_hash(phc)
    assert found.verify(b"x")
    assert not found.verify(b"y")
    assert found.text() == phc


def test_few_iterations_are_not_slow() -> None:
    assert not parse_hash(SEVEN).is_slow
    assert parse_hash(SEVEN.replace("$101$", "$1000$")).is_slow


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_files_of_mosquitto_passwd(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    for at, user in enumerate(["ada", "bob", "eve"]):
        created = ["-c"] if at == 0 else []
        command = ["mosquitto_passwd", "-H", kind, *created, "-b", str(file), user, f"secret of {user}"]
        subprocess.run(command, check=True, capture_output=True)
    users = read_passwords(file.read_bytes())
    assert {user: parse_hash(row).verify(f"secret of {user}".encode()) for user, row in users.items()} == {
        "ada": True,
        "bob": True,
        "eve": True,
    }


def test_comments_blanks_and_empty_lines_say_nothing() -> None:
    data = f"# users\r\n\n  ada : {SIX} \r\n\t\nbob:{SEVEN}".encode()
    assert read_passwords(data) == {"ada": SIX, "bob": SEVEN}
    assert read_passwords(b"") == {}
    assert read_passwords(b"# nobody\n") == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ada", "it has no ':'"),
        (":" + SIX, "no user's name"),
        (f"a\x01b:{SIX}", "control characters"),
        (f"{'x' * 1025}:{SIX}", "at most 1024 bytes"),
        ("ada:secret", "not hashed"),
        ("ada:", "not hashed"),
        ("ada:$5$x$y", "not hashed"),
        (f"ada:{SIX}:more", "not base64"),
        (f"ada:{SIX}$", "missing, or something follows"),
        (f"ada:{SIX[:-8]}", "64: was the line cut"),
        ("ada:$6$AAAA", "missing"),
        ("ada:$6$$AAAA", "the salt has 0 bytes"),
        ("ada:$6$!$AAAA", "not base64"),
        (f"ada:{SEVEN.replace('$101$', '$0$')}", "iterations"),
        (f"ada:{SEVEN.replace('$101$', '$-1$')}", "iterations"),
        (f"ada:{SEVEN.replace('$101$', f'${ITERATIONS_MAX + 1}$')}", "iterations"),
        ("ada:" + SEVEN.replace("$101$", "$\u0661$"), "iterations"),
        ("ada:$argon2id$v=16$m=64,t=1,p=1$AAAAAAAAAAA$AAAAAAAA", "v=19"),
        (f"ada:$argon2id$v=19$m={MEMORY_KIB_MAX + 1},t=1,p=1$AAAAAAAAAAA$AAAAAAAA", "KiB"),
        ("ada:$argon2id$v=19$m=64,t=1000,p=1$AAAAAAAAAAA$AAAAAAAA", "passes"),
        ("ada:$argon2id$v=19$m=64,t=1,p=9$AAAAAAAAAAA$AAAAAAAA", "needs 72 KiB"),
        ("ada:$argon2id$v=19$m=64,t=1,p=1$AAAA$AAAAAAAA", "a salt of 8 bytes"),
        ("ada:$argon2i$v=19$m=64,t=1,p=1$AAAAAAAAAAA$AAAAAAAA", "not hashed"),
        (f"bob:{SIX}", "stands in line 1 already"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^line 3: .*" + says):
        read_passwords(f"bob:{SIX}\n\n{line}\n".encode())


def test_what_is_no_text_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2: it is not UTF-8"):
        read_passwords(f"ada:{SIX}\nbob\xff:".encode("latin-1"))


@given(st.dictionaries(names, st.binary(max_size=40), max_size=8), st.integers(0, 3))
def test_files_that_are_written_are_read(users: dict[str, bytes], comments: int) -> None:
    data = b"# a comment\n" * comments
    for user, password in users.items():
        data = with_user(data, user, hash_password(password, bytes(12), SHA512).text())
    found = read_passwords(data)
    assert {user: parse_hash(row).verify(users[user]) for user, row in found.items()} == dict.fromkeys(users, True)
    assert data.count(b"# a comment\n") == comments
    for user in list(users)[::2]:
        data = without_user(data, user)
    assert list(read_passwords(data)) == list(users)[1::2]


@given(st.binary(max_size=200))
def test_nothing_but_config_errors_comes_of_any_bytes(data: bytes) -> None:
    try:
        found = read_passwords(data)
    except ConfigError:
        return
    for user in found:
        check_user(user)


@given(st.text(max_size=80))
def test_nothing_but_config_errors_comes_of_any_hash(text: str) -> None:
    for head in ("", "$6$", "$7$", "$7$101$", "$argon2id$v=19$m=64,t=1,p=1$"):
        try:
            found = parse_hash(head + text)
        except ConfigError:
            continue
        assert parse_hash(found.text()) == found


def test_a_row_is_replaced_in_its_place_and_others_stay() -> None:
    data = f"# one\nada:{SIX}\nbob:{SIX}".encode()
    assert with_user(data, "ada", SEVEN).decode() == f"# one\nada:{SEVEN}\nbob:{SIX}\n"
    assert with_user(data, "eve", SEVEN).decode() == f"# one\nada:{SIX}\nbob:{SIX}\neve:{SEVEN}\n"
    assert without_user(data, "ada").decode() == f"# one\nbob:{SIX}"
    assert without_user(data, "nobody") == data
    with pytest.raises(ConfigError):
        with_user(data, "a:b", SIX)


def test_made_up_hashes_are_like_those_of_the_file() -> None:
    rows = {f"fast-{i}": SIX for i in range(30)} | {f"slow-{i}": SEVEN for i in range(10)}
    found = likenesses(rows)
    made = [found.made_up(hashlib.sha512(b"%d" % i).digest()) for i in range(400)]
    slow = sum([each.kind == PBKDF2 for each in made])
    assert 60 <= slow <= 140
    assert {(each.iterations, len(each.salt), len(each.digest)) for each in made} == {(0, 12, 64), (101, 12, 64)}
    assert not any([each.verify(b"secret") for each in made[:50]])
    assert found.made_up(bytes(64)) == found.made_up(bytes(64))
    assert likenesses({}) == NO_LIKENESS
