"""Tokens as passwords: whose they are and until when; what was wrong elsewhere (none, keys for secrets) is not."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import AuthenticationError, ConfigError
from lexicast.cluster.security.tokens import TokenRules, check_fit, is_token, read_token, read_token_keys

NOW_S = 1_000_000.0
RSA = rsa.generate_private_key(65_537, 2_048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = b"a secret that nobody guesses, of 40 bytes"
ALL = TokenRules(("RS256", "ES256", "EdDSA", "HS256"))


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def made(key: Any, algorithm: str = "RS256", head: dict[str, Any] | None = None, **claims: Any) -> bytes:
    said = {"sub": "ada", "exp": NOW_S + 60, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers=head).encode()


KEYS = read_token_keys(pem(RSA) + b"\n" + pem(EC) + pem(ED))


@pytest.mark.parametrize(("key", "algorithm", "which"), [(RSA, "RS256", 0), (EC, "ES256", 1), (ED, "EdDSA", 2)])
def test_whose_a_token_is(key: Any, algorithm: str, which: int) -> None:
    token = made(key, algorithm)
    assert is_token(token)
    found = read_token(token, KEYS, ALL, NOW_S)
    assert found == ("ada", NOW_S + 60, KEYS[which].fingerprint)


def test_a_secret_signs_too_where_it_is_to() -> None:
    keys = read_token_keys(SECRET + b"\n")
    assert read_token(made(SECRET, "HS256"), keys, ALL, NOW_S).user == "ada"
    with pytest.raises(AuthenticationError, match="not taken"):
        read_token(made(SECRET, "HS256"), keys, TokenRules(("RS256",)), NOW_S)


def test_a_key_set_whose_keys_are_named() -> None:
    other = rsa.generate_private_key(65_537, 2_048)
    to_jwk = jwt.algorithms.RSAAlgorithm.to_jwk
    rows = [{**json.loads(to_jwk(key.public_key())), "kid": kid} for key, kid in ((RSA, "one"), (other, "two"))]
    keys = read_token_keys(json.dumps({"keys": rows}).encode())
    assert read_token(made(RSA, head={"kid": "one"}), keys, ALL, NOW_S).fingerprint == keys[0].fingerprint
    assert read_token(made(other), keys, ALL, NOW_S).fingerprint == keys[1].fingerprint
    with pytest.raises(AuthenticationError, match="none of the keys"):
        read_token(made(RSA, head={"kid": "two"}), keys, ALL, NOW_S)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": NOW_S}, "has ended"),
        ({"exp": None}, "has no end"),
        ({"exp": "tomorrow"}, "has no end"),
        ({"exp": True}, "has no end"),
        ({"nbf": NOW_S + 1}, "does not hold yet"),
        ({"sub": None}, "without a user"),
        ({"sub": ""}, "without a user"),
        ({"sub": "a\0b"}, "without a user"),
        ({"sub": "\ud800"}, "without a user"),
        ({"sub": "x" * 1_025}, "without a user"),
        ({"aud": "elsewhere"}, "another audience"),
        ({"aud": ["elsewhere", "there"]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"iss": "somebody"}, "another issuer"),
        ({"iss": None}, "another issuer"),
    ],
)
def test_what_a_token_has_to_say(claims: dict[str, Any], says: str) -> None:
    rules = TokenRules(("RS256",), "sub", "here", "us")
    good: dict[str, Any] = {"aud": ["elsewhere", "here"], "iss": "us"}
    assert read_token(made(RSA, **good), KEYS, rules, NOW_S).user == "ada"
    with pytest.raises(AuthenticationError, match=says):
        read_token(made(RSA, **{**good, **claims}), KEYS, rules, NOW_S)


def test_another_claim_names_the_user() -> None:
    assert read_token(made(RSA, device="sensor"), KEYS, TokenRules(("RS256",), "device"), NOW_S).user == "sensor"


def test_a_token_that_nobody_has_signed_is_none() -> None:
    unsigned = jwt.encode({"sub": "ada", "exp": NOW_S + 60}, "", "none").encode()
    with pytest.raises(AuthenticationError, match="not taken"):
        read_token(unsigned, KEYS, ALL, NOW_S)
    head, body, _ = made(RSA).split(b".")
    for signature in (b"", b"AAAA"):
        with pytest.raises(AuthenticationError, match="none of the keys"):
            read_token(b".".join([head, body, signature]), KEYS, ALL, NOW_S)
    with pytest.raises(AuthenticationError, match="none of the keys"):
        read_token(made(rsa.generate_private_key(65_537, 2_048)), KEYS, ALL, NOW_S)


def test_a_public_key_is_never_a_secret() -> None:
    """CVE-2016-10555: a token signed by HMAC with the public key's text, which everybody has."""
    import base64
    import hashlib
    import hmac

    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (
            {"alg": "HS256", "typ": "JWT"},
            {"sub": "ada", "exp": NOW_S + 60},
        )
    )
    signed = head + b"." + body
    for text in (pem(RSA), pem(RSA).strip()):
        mac = base64.urlsafe_b64encode(hmac.new(text, signed, hashlib.sha256).digest()).rstrip(b"=")
        with pytest.raises(AuthenticationError, match="none of the keys"):
            read_token(signed + b"." + mac, KEYS, ALL, NOW_S)


# A public key of a curve that the library does not know.
SECP224K1 = b"""-----BEGIN PUBLIC KEY-----
ME4wEAYHKoZIzj0CAQYFK4EEACADOgAE542Qnc0IQ13QjF8tHv6BKXc7q190BHXm
6uCQGH4ZE+Ufm1uJwzYIc3oGe9OWH0DuPWxoBe1Ml7w=
-----END PUBLIC KEY-----
"""
PRIVATE = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "too short for a secret"),
        (b"short", "too short for a secret"),
        (PRIVATE, "a private key"),
        (pem(RSA)[:-40], "has no end"),
        (pem(RSA).replace(b"MII", b"AAA"), "cannot be read"),
        (pem(rsa.generate_private_key(65_537, 1_024)), "too weak"),
        (b'{"keys": []}', "0 keys"),
        (b'{"keys": 7}', "no JSON Web Key Set"),
        (b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', "a secret stands in a file of its own"),
        (b"{", "no JSON Web Key Set"),
        # Everybody has these: they are no secrets, though long enough.
        (RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), "neither as PEM nor"),
        (RSA.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), "neither as PEM nor"),
        (b'\xef\xbb\xbf{"keys": [{"kty": "RSA", "n": "AAAA"}]}', "neither as PEM nor"),
        (pem(EC).decode().encode("utf-16"), "neither as PEM nor"),
        (SECP224K1, "cannot be read"),
    ],
)
def test_key_files_that_are_none(data: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_token_keys(data)


@pytest.mark.parametrize("algorithms", [["none"], ["RS256", "none"], [], ["hs256"]])
def test_algorithms_that_are_none_are_refused(algorithms: list[str]) -> None:
    plain = {"security": {"jwt_key_file": "k", "jwt_algorithms": algorithms}}
    with pytest.raises(ConfigError, match="jwt_algorithms"):
        Config.from_dict(plain)


@given(st.binary(max_size=300))
def test_nothing_but_refusals_comes_of_any_bytes(data: bytes) -> None:
    head, body, signature = made(RSA).split(b".")
    for token in (data, b"eyJ" + data, head + b"." + data + b"." + signature, head + b"." + body + b"." + data):
        if token == made(RSA):
            continue
        with pytest.raises(AuthenticationError):
            read_token(token, KEYS, ALL, NOW_S)
    with pytest.raises(ConfigError):
        read_token_keys(b"{" + data)


def test_keys_that_fit_no_algorithm_are_told() -> None:
    assert check_fit(KEYS, ("RS256", "ES384", "EdDSA")) == []
    (told,) = check_fit(KEYS, ("RS256", "EdDSA"))
    assert told.startswith("key 2 of 3 is for ES256, ES384, ES512, and security.jwt_algorithms takes RS256, EdDSA")
    with pytest.raises(ConfigError, match="none of its keys fits: key 1 of 1 is for HS256"):
        check_fit(read_token_keys(SECRET), ("RS256",))
