"""Mosquitto's password files: users and the hashes of their passwords, read and written.

    # a comment
    ada:$6$SALT$HASH                                 SHA-512 of password and salt: one fast hash, for generated secrets
    bob:$7$ITERATIONS$SALT$HASH                      PBKDF2 with HMAC-SHA-512, 64 bytes (RFC 8018)
    eve:$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH       Argon2id as a PHC string (RFC 9106)

SALT and HASH are base64, in a PHC string without padding. A file with a line that is none of these is refused as a
whole, and so is one that names a user twice: neither Mosquitto's silent skipping nor its "first one counts" may decide
who gets in. An empty file has no users: nobody can log in.

Pure: salts are given.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from ..errors import ConfigError

SHA512: Final = "sha512"
PBKDF2: Final = "pbkdf2"
ARGON2ID: Final = "argon2id"
KINDS: Final = (ARGON2ID, PBKDF2, SHA512)

# Of a file: some 60,000 users. It is kept by the coordination server and by every broker.
PASSWORDS_BYTES_MAX: Final = 8 * 1024 * 1024
USER_BYTES_MAX: Final = 1_024
# What verifying one password may cost a broker, whatever the file says.
ITERATIONS_MAX: Final = 5_000_000
MEMORY_KIB_MAX: Final = 512 * 1024
PASSES_MAX: Final = 100
LANES_MAX: Final = 64
SALT_BYTES_MAX: Final = 64

# Mosquitto writes salts of 12 bytes (up to 2.0) and 64 (2.1), and takes no others; PHC strings have 16 (RFC 9106, 4).
SALT_BYTES: Final = {SHA512: 12, PBKDF2: 12, ARGON2ID: 16}
_DIGEST_BYTES: Final = {SHA512: 64, PBKDF2: 64, ARGON2ID: 32}
# OWASP's password storage cheat sheet: 20 to 150 ms of a core.
_ITERATIONS: Final = {SHA512: 0, PBKDF2: 210_000, ARGON2ID: 2}
_MEMORY_KIB: Final = 19 * 1024
# So many iterations of PBKDF2 take 0.2 ms: less than to have a thread do it is worth.
_FAST_ITERATIONS_MAX: Final = 200

_ARGON2ID_HEAD: Final = re.compile(r"v=19\$m=([0-9]{1,9}),t=([0-9]{1,9}),p=([0-9]{1,9})")
_BLANKS: Final = " \t\r\v\f"

# Users and their hashes as they are written.
Passwords: TypeAlias = dict[str, str]


class PasswordHash(NamedTuple):
    """A password's hash. `iterations`: of PBKDF2, or Argon2id's passes; `memory_kib`, `lanes`: Argon2id's."""

    kind: str
    salt: bytes
    digest: bytes
    iterations: int = 0
    memory_kib: int = 0
    lanes: int = 0

    @property
    def is_slow(self) -> bool:
        """Whether to verify a password takes longer than a fraction of a millisecond."""
        return self.kind == ARGON2ID or self.iterations > _FAST_ITERATIONS_MAX

    def verify(self, password: bytes) -> bool:
        """Whether this is the password. Takes as long for any password of that length."""
        return hmac.compare_digest(_digest(self, password, len(self.digest)), self.digest)

    def text(self) -> str:
        """As it is written."""
        if self.kind == ARGON2ID:
            costs = f"v=19$m={self.memory_kib},t={self.iterations},p={self.lanes}"
            return f"$argon2id${costs}${_encoded(self.salt).rstrip('=')}${_encoded(self.digest).rstrip('=')}"
        head = "$6" if self.kind == SHA512 else f"$7${self.iterations}"
        return f"{head}${_encoded(self.salt)}${_encoded(self.digest)}"


def hash_password(password: bytes, salt: bytes, kind: str = ARGON2ID) -> PasswordHash:
    """The hash to write for a password; `salt`: SALT_BYTES[kind] random bytes."""
    memory_kib, lanes = (_MEMORY_KIB, 1) if kind == ARGON2ID else (0, 0)
    lacking = PasswordHash(kind, salt, b"", _ITERATIONS[kind], memory_kib, lanes)
    return lacking._replace(digest=_digest(lacking, password, _DIGEST_BYTES[kind]))


def _digest(of: PasswordHash, password: bytes, length: int) -> bytes:
    if of.kind == SHA512:
        return hashlib.sha512(password + of.salt).digest()
    if of.kind == PBKDF2:
        return hashlib.pbkdf2_hmac("sha512", password, of.salt, of.iterations, length)
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id  # loads OpenSSL once more: only where it is used

    # It lets other threads run meanwhile, and so does PBKDF2.
    argon = Argon2id(salt=of.salt, length=length, iterations=of.iterations, lanes=of.lanes, memory_cost=of.memory_kib)
    return argon.derive(password)


def parse_hash(text: str) -> PasswordHash:
    """The inverse of `PasswordHash.text`, also for what Mosquitto writes. Raises ConfigError."""
    empty, _, rest = text.partition("$")
    scheme, _, rest = rest.partition("$")
    if empty or scheme not in ("6", "7", "argon2id"):
        raise ConfigError(
            "the password is not hashed as $6$, $7$ or $argon2id$: run `mosquitto_passwd -U FILE`, or "
            "`lexicast user passwd NAME`"
        )
    if scheme == "argon2id":
        return _argon2id(rest)
    iterations = 0
    if scheme == "7":
        number, _, rest = rest.partition("$")
        iterations = _number(number, ITERATIONS_MAX, "iterations")
    salt, digest = _salt_and_digest(rest, padded=True)
    if len(digest) != _DIGEST_BYTES[SHA512]:
        raise ConfigError(f"the hash has {len(digest)} bytes, not {_DIGEST_BYTES[SHA512]}: was the line cut?")
    return PasswordHash(SHA512 if scheme == "6" else PBKDF2, salt, digest, iterations)


def _argon2id(rest: str) -> PasswordHash:
    head = _ARGON2ID_HEAD.match(rest)
    if head is None or rest[head.end() : head.end() + 1] != "$":
        raise ConfigError("what follows $argon2id$ is not v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH")
    limits = ((MEMORY_KIB_MAX, "KiB (m)"), (PASSES_MAX, "passes (t)"), (LANES_MAX, "lanes (p)"))
    memory_kib, passes, lanes = (_number(n, *limit) for n, limit in zip(head.groups(), limits, strict=True))
    if memory_kib < 8 * lanes:  # RFC 9106, 3.1
        raise ConfigError(f"Argon2id with {lanes} lanes needs {8 * lanes} KiB, not {memory_kib}")
    salt, digest = _salt_and_digest(rest[head.end() + 1 :], padded=False)
    if len(salt) < 8 or not 4 <= len(digest) <= 128:
        raise ConfigError(
            f"Argon2id has a salt of 8 bytes and more and a hash of 4 to 128, not {len(salt)} and {len(digest)}"
        )
    return PasswordHash(ARGON2ID, salt, digest, passes, memory_kib, lanes)


def _salt_and_digest(text: str, padded: bool) -> tuple[bytes, bytes]:
    parts = text.split("$")
    if len(parts) != 2:
        raise ConfigError("salt and hash are missing, or something follows them")
    salt, digest = (_decoded(part, padded) for part in parts)
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise ConfigError(f"the salt has {len(salt)} bytes: 1 to {SALT_BYTES_MAX} are taken")
    return salt, digest


def _number(text: str, most: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise ConfigError(f"{text[:20]!r} {what}: 1 to {most} are taken")
    return int(text)


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(text: str, padded: bool) -> bytes:
    try:
        data = b64decode(text if padded else text + "=" * (-len(text) % 4), validate=True)
    except (Base64Error, ValueError):
        raise ConfigError("salt or hash is not base64: was the line cut?") from None
    return data


# -- files


def read_passwords(data: bytes) -> Passwords:
    """The users of a file and their hashes. Raises ConfigError, which names the line."""
    found: Passwords = {}
    lines: dict[str, int] = {}
    for number, line in _lines(data):
        try:
            user, written = _row(line)
            parse_hash(written)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
        if user in found:
            raise ConfigError(f"line {number}: {user!r} stands in line {lines[user]} already: remove one of them")
        found[user], lines[user] = written, number
    return found


def with_user(data: bytes, user: str, written: str) -> bytes:
    """The file with this user's hash, in its place where it has one, else at the end. Raises ConfigError."""
    check_user(user)
    row, found = f"{user}:{written}", False
    kept: list[str] = []
    for line in _text(data).removesuffix("\n").split("\n"):
        same = _user_of(line) == user
        kept.append(row if same and not found else line)
        found = found or same
    kept = kept if data else []
    return ("\n".join(kept if found else [*kept, row]) + "\n").encode()


def without_user(data: bytes, user: str) -> bytes:
    """The file without this user; as it is where it has none. Raises ConfigError."""
    return "\n".join([line for line in _text(data).split("\n") if _user_of(line) != user]).encode()


def check_user(user: str) -> None:
    """Raises ConfigError: no user of a password file can be called so."""
    if not user or user != user.strip(_BLANKS) or user[0] == "#":
        raise ConfigError(
            f"{user!r} is no user's name: it is not empty, begins with no '#' and has no blanks around it"
        )
    if ":" in user or any([ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in user]):
        raise ConfigError(f"{user!r} is no user's name: ':' and control characters may not stand in it")
    try:
        size = len(user.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{user!r} is no user's name: it is not text") from None
    if size > USER_BYTES_MAX:
        raise ConfigError(f"a user's name has at most {USER_BYTES_MAX} bytes, not {size}")


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Those that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(_text(data).split("\n"), 1):
        stripped = line.strip(_BLANKS)
        if stripped and stripped[0] != "#":
            yield number, stripped


def _text(data: bytes) -> str:
    if len(data) > PASSWORDS_BYTES_MAX:
        raise ConfigError(f"the file has {len(data):,} bytes: at most {PASSWORDS_BYTES_MAX:,} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: it is not UTF-8") from None


def _row(line: str) -> tuple[str, str]:
    user, colon, written = line.partition(":")
    if not colon:
        raise ConfigError("it has no ':' between a user's name and a hash")
    user = user.strip(_BLANKS)
    check_user(user)
    return user, written.strip(_BLANKS)


def _user_of(line: str) -> str:
    """Whose row it is; "" where it is none."""
    stripped = line.strip(_BLANKS)
    return "" if stripped[:1] == "#" else stripped.partition(":")[0].strip(_BLANKS)
