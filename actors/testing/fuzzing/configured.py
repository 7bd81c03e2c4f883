"""Texts that people hand in: files of users and of rules, tokens and their keys, and conditions of subscribers.

A file of rules is asked about its own topics: both ways in which a question can be asked have to agree. A condition is
asked of payloads, and of its own canonical form.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import AuthenticationError, ConfigError, UsageError
from lexicast.cluster.security.acl_file import READ, WRITE
from lexicast.cluster.security.authors import can_be_user
from lexicast.cluster.security.files import rules_text
from lexicast.cluster.security.passwords import (
    ARGON2ID,
    PBKDF2,
    SALT_BYTES,
    SHA512,
    PasswordHash,
    parse_hash,
    read_passwords,
    with_user,
    without_user,
)
from lexicast.cluster.security.rules import HISTORY, AccessRules
from lexicast.cluster.security.tokens import (
    ALGORITHMS,
    KEYS_MAX,
    TokenKey,
    TokenRules,
    is_token,
    read_token,
    read_token_keys,
)

from .target import FuzzTarget, must

ASKED_MAX: Final = 8
NAMES: Final = (("", "c"), ("ada", "c1"), ("bob", "a/b"), ("+", "#"), ("ada", "bob/x"))


def _attempt_passwords(data: bytes) -> None:
    try:
        users = read_passwords(data)
    except ConfigError:
        return
    for user, written in islice(users.items(), ASKED_MAX):
        must(bool(user) and ":" not in user, f"a user called {user!r}")
        found = parse_hash(written)
        must(parse_hash(found.text()) == found, "written and read it is another hash")
        if found.kind == SHA512:
            must(not found.verify(b""), "no password is the password")
        must(read_passwords(with_user(data, user, written)) == users, "the same row changes the file")
        must(user not in read_passwords(without_user(data, user)), "a user who was removed is there")


def _attempt_rules(data: bytes) -> None:
    try:
        rules = AccessRules.of_text(rules_text(data))
    except ConfigError:
        return
    for user, client_id in (*NAMES, *[(user, "c") for user in islice(rules.users(), ASKED_MAX)]):
        for rule in islice(rules.of_user(user), ASKED_MAX):
            _ask(rules, user, client_id, rule.topic_filter)


def _ask(rules: AccessRules, user: str, client_id: str, topic_filter: bytes) -> None:
    """Of a filter and of a topic that it matches."""
    topic = b"/".join([b"x" if level in (b"+", b"#") else level for level in topic_filter.split(b"/")])
    rights = rules.rights(user, client_id, topic)
    must(not rights & HISTORY or rights & READ != 0, "the past without the present")
    for action in (READ, WRITE, HISTORY):
        must(rules.may(user, client_id, action, topic) == bool(rights & action), "may and rights disagree")
    must(not rights & READ or rules.meets(user, client_id, READ, topic), "a topic that may be read does not meet")
    if b"+" not in topic_filter and not topic_filter.endswith(b"#"):
        return
    if rules.covers(user, client_id, READ, topic_filter) and not topic.startswith(b"$"):
        must(rights & READ != 0, f"all of {topic_filter!r} may be read, but not {topic!r}")
    if rights & READ and not topic.startswith(b"$"):
        must(
            rules.meets(user, client_id, READ, topic_filter), f"{topic!r} may be read, but nothing of {topic_filter!r}"
        )


def _attempt_conditions(data: bytes) -> None:
    """A condition up to the first NUL, and the payload that it is asked of."""
    text, _, payload = data.partition(b"\0")
    try:
        where = text.decode()
        predicate = Predicate.parse(where)
    except (UnicodeDecodeError, UsageError):
        return
    again = Predicate.of_canonical(predicate.text)
    must(again.text == predicate.text, f"the canonical form has another canonical form: {again.text!r}")
    answers = []
    for each in (predicate, again):
        for reader in (FieldReader(each.names), FieldReader()):
            answers.append(
                each.matches(ContentRecord(b"a/b", payload, reader, 1, 1, False, {3: "t", 38: [("k", "v")]}))
            )
    must(len(set(answers)) == 1, f"four answers to one question: {answers}")


def _attempt_tokens(data: bytes) -> None:
    """A file of keys up to the first NUL, and a token that is shown: of these keys, and of ours."""
    written, _, token = data.partition(b"\0")
    try:
        keys = read_token_keys(written)
    except ConfigError:
        keys = []
    must(len({key.fingerprint for key in keys}) <= KEYS_MAX, "more keys than are taken")
    for each in (keys, _OUR_KEYS):
        for rules in (TokenRules(ALGORITHMS), TokenRules(("HS256",), "name", "here", "us")):
            _show(token, each, rules)


def _show(token: bytes, keys: Sequence[TokenKey], rules: TokenRules) -> None:
    try:
        found = read_token(token, keys, rules, _NOW_S)
    except AuthenticationError:
        return
    must(can_be_user(found.user), f"a user called {found.user!r}")
    must(found.until_s > _NOW_S, "a token that has ended lets somebody in")
    must(is_token(token), "a password that is no token was taken as one")
    signed = [key for key in keys if key.fingerprint == found.fingerprint]
    must(len(signed) >= 1, "a key that nobody has given has signed")
    must(_signs(token, signed), "it was signed by no key of its algorithm")


def _signs(token: bytes, keys: Sequence[TokenKey]) -> bool:
    """What the library says by itself of the algorithm that the token names, if it is one of a key's."""
    algorithm = str(jwt.get_unverified_header(token)["alg"])
    for key in keys:
        if algorithm not in key.algorithms:
            continue
        with suppress(jwt.InvalidSignatureError):
            jwt.api_jws.decode(token, key.key, [algorithm])
            return True
    return False


def _hash(kind: str, iterations: int = 0, memory_kib: int = 0, lanes: int = 0) -> str:
    return PasswordHash(kind, b"s" * SALT_BYTES[kind], b"d" * 64, iterations, memory_kib, lanes).text()


_USERS: Final = f"""# who
ada:{_hash(SHA512)}
bob:{_hash(PBKDF2, 1000)}
eve:{_hash(ARGON2ID, 1, 64, 1)}
""".encode()
_RULES: Final = b"""topic read public/#
user ada
topic readwrite plant/+/state
topic deny plant/1/#
topic nohistory plant/secret
user bob
topic #
pattern write devices/%u/#
pattern read clients/%c/+
pattern deny clients/%c/%u
"""
_CONDITIONS: Final = (
    b't > 20.5 AND ("a b" LIKE \'x%_\' OR NOT n IN (1, 2, 3))\0{"t":21,"a b":"xyz","n":4}',
    b"a.b IS NULL OR publication.qos = 1\0\x81\xa1a\x01",
    b"temperature BETWEEN 1 AND 2e3 AND ok = TRUE\0{}",
)


_NOW_S: Final = 1_000_000_000.0
_SECRET: Final = b"a secret of as many bytes as it takes"
_OUR_KEYS: Final = read_token_keys(_SECRET)
_CLAIMS: Final[dict[str, Any]] = {"sub": "ada", "name": "ada", "aud": "here", "iss": "us", "exp": 2_000_000_000}


def _tokens() -> Iterator[bytes]:
    """Keys and what they have signed, and tokens of others' attacks."""
    signer = ec.generate_private_key(ec.SECP256R1())
    public = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys = b'{"keys": [%s]}' % jwt.algorithms.ECAlgorithm.to_jwk(signer.public_key()).encode()
    for claims in (_CLAIMS, {**_CLAIMS, "exp": 1}, {**_CLAIMS, "nbf": 1_500_000_000, "aud": ["x", "here"]}):
        yield _SECRET + b"\0" + jwt.encode(claims, _SECRET, "HS256").encode()
        yield public + b"\0" + jwt.encode(claims, signer, "ES256").encode()
        yield keys + b"\0" + jwt.encode(claims, signer, "ES256", {"kid": "k"}).encode()
    yield public + b"\0" + jwt.encode(_CLAIMS, "", "none").encode()  # CVE-2015-9235
    yield _SECRET + b"\0" + _by_hand({"alg": "HS256", "crit": ["x"], "b64": False})


def _by_hand(head: dict[str, Any]) -> bytes:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, _CLAIMS)]
    return b".".join([*parts, b"AAAA"])


def tokens() -> FuzzTarget:
    """Files of keys, and tokens that are shown."""
    return FuzzTarget(_attempt_tokens, tuple(_tokens()))


def passwords() -> FuzzTarget:
    """Files of users."""
    return FuzzTarget(_attempt_passwords, (_USERS, *[line + b"\n" for line in _USERS.splitlines()]))


def rules() -> FuzzTarget:
    """Files of rules."""
    return FuzzTarget(_attempt_rules, (_RULES, *[line + b"\n" for line in _RULES.splitlines()]))


def conditions() -> FuzzTarget:
    """Conditions of subscribers, and payloads that they are asked of."""
    return FuzzTarget(_attempt_conditions, _CONDITIONS)
