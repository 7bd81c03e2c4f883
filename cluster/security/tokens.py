"""JSON Web Tokens as passwords (RFC 7519): whose they are, and until when. Pure; the time is given.

The key file (security.jwt_key_file) holds one of

    PEM public keys, one after another     RSA for RS*/PS*, EC for ES*, Ed25519 for EdDSA
    a JSON Web Key Set (RFC 7517)          the same; a token that names a key by `kid` has to be signed by that one
    a secret of 32 bytes and more          for HS*: whoever can check a token can make one then

Which algorithms count is the configuration's to say, never the token's: "none" is none of them, and a key is asked only
about tokens of its own kind, so that a public key is never taken for a secret (CVE-2016-10555). A token without an end
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..errors import AuthenticationError, ConfigError
from .authors import can_be_user

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
    *("HS256", "HS384", "HS512"),
)
TOKEN_BYTES_MAX: Final = 8_192
KEYS_MAX: Final = 100
SECRET_BYTES_MIN: Final = 32

_PEM_BEGIN: Final = b"-----BEGIN "
_PEM_END: Final = b"-----END "


class TokenKey(NamedTuple):
    """A key, the algorithms that go with it, and how it is known."""

    key: Any
    algorithms: tuple[str, ...]
    key_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say. `user`: the claim that names the user; "" of the others: not looked at."""

    algorithms: tuple[str, ...]
    user: str = "sub"
    audience: str = ""
    issuer: str = ""


class TokenLogin(NamedTuple):
    """Whose a token is, until when (seconds since 1970), and by which key."""

    user: str
    until_s: float
    fingerprint: str


def is_token(password: bytes) -> bool:
    """Whether a password is meant as a token: three parts, the first a JSON object in base64url."""
    return password.startswith(b"eyJ") and password.count(b".") == 2


def check_algorithms(algorithms: Sequence[str]) -> None:
    """Raises ConfigError: one of them is none that is taken."""
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            raise ConfigError(f"security.jwt_algorithms: {algorithm!r} is none of {', '.join(ALGORITHMS)}")
    if not algorithms:
        raise ConfigError("security.jwt_algorithms is empty: no token would ever be taken")


def read_token_keys(data: bytes) -> list[TokenKey]:
    """The keys of a file. Raises ConfigError."""
    text = data.strip()
    if text.startswith(b"{"):
        keys = _of_set(text)
    elif _PEM_BEGIN in text:
        keys = [_of_pem(part) for part in _pem_parts(text)]
    elif _is_known_to_all(data):
        raise ConfigError("it holds public keys, but neither as PEM nor as a key set: a secret is nothing of the kind")
    elif len(text) >= SECRET_BYTES_MIN:
        keys = [_made(text, ("HS256", "HS384", "HS512"), "", text)]
    else:
        raise ConfigError(
            f"it holds neither PEM public keys nor a key set, and is too short for a secret ({SECRET_BYTES_MIN} bytes)"
        )
    if not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(f"it holds {len(keys)} keys: 1 to {KEYS_MAX} are taken")
    return keys


def _is_known_to_all(data: bytes) -> bool:
    """Whether it is a public key of another form, which as a secret would be nobody's: DER, OpenSSH's, a key set behind
    a byte order mark, text of 16 bits a character."""
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    if b'"kty"' in data or b"-\0-\0-\0" in data or data.lstrip().startswith((b"ssh-", b"ecdsa-")):
        return True
    try:
        load_der_public_key(data)
    except Exception:  # whatever it says: it is none
        return False
    return True


def _pem_parts(text: bytes) -> list[bytes]:
    parts = [_PEM_BEGIN + part for part in text.split(_PEM_BEGIN)[1:]]
    if any([_PEM_END not in part for part in parts]):
        raise ConfigError("a PEM key has no end: was the file cut?")
    return parts


def _of_pem(part: bytes) -> TokenKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # only where there are tokens
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in part.partition(b"\n")[0]:
        raise ConfigError("it holds a private key, with which tokens are made: give the public one")
    try:
        key = load_pem_public_key(part)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError("a PEM key cannot be read") from None
    return _of_public(key, "", part)


def _of_public(key: Any, key_id: str, known_by: bytes) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < 2_048:
            raise ConfigError(f"an RSA key of {key.key_size} bits is too weak: 2048 and more are taken")
        return _made(key, ALGORITHMS[:6], key_id, known_by)
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _made(key, ("ES256", "ES384", "ES512"), key_id, known_by)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return _made(key, ("EdDSA",), key_id, known_by)
    raise ConfigError(f"a key of the kind {type(key).__name__} is none for tokens")


def _of_set(text: bytes) -> list[TokenKey]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    mistakes = (ValueError, LookupError, TypeError, AttributeError, RecursionError, PyJWTError, UnsupportedAlgorithm)
    try:
        rows = json.loads(text)["keys"]
        keys = []
        for row in rows:
            if row.get("use", "sig") != "sig":
                continue
            if "d" in row:
                raise ConfigError("it holds a private key, with which tokens are made: give the public ones")
            known_by = json.dumps(row, sort_keys=True).encode()
            if row.get("kty") == "oct":
                raise ConfigError("a key set has public keys; a secret stands in a file of its own")
            keys.append(_of_public(PyJWK.from_dict(row).key, str(row.get("kid", "")), known_by))
    except mistakes as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("it is no JSON Web Key Set whose keys can be read") from None
    return keys


def check_fit(keys: Sequence[TokenKey], algorithms: Sequence[str]) -> list[str]:
    """The keys by which no token is ever taken, since none of their algorithms is, in words. Raises ConfigError: those
    are all, so that nobody could log in by a token."""
    idle = [
        f"key {number} of {len(keys)}{f' ({key.key_id})' if key.key_id else ''} is for {', '.join(key.algorithms)}"
        for number, key in enumerate(keys, 1)
        if not set(key.algorithms) & set(algorithms)
    ]
    told = f"security.jwt_algorithms takes {', '.join(algorithms)}"
    if len(idle) == len(keys):
        raise ConfigError(f"the key file of tokens, none of its keys fits: {'; '.join(idle)}, and {told}")
    return [f"{each}, and {told}: no token is ever taken by it" for each in idle]


def _made(key: Any, algorithms: tuple[str, ...], key_id: str, known_by: bytes) -> TokenKey:
    return TokenKey(key, algorithms, key_id, blake2b(known_by, digest_size=16).hexdigest())


def read_token(token: bytes, keys: Sequence[TokenKey], rules: TokenRules, now_s: float) -> TokenLogin:
    """Whose a token is. Raises AuthenticationError, which says what is wrong with it, for operators alone."""
    import jwt

    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationError("a token that is too long")
    try:
        head = jwt.get_unverified_header(token)
        algorithm, key_id = head.get("alg"), head.get("kid", "")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthenticationError("a token that cannot be read") from None
    if algorithm not in rules.algorithms:
        raise AuthenticationError("a token of an algorithm that is not taken")
    for key in keys:
        if algorithm not in key.algorithms or (key.key_id and key_id and key.key_id != key_id):
            continue
        try:
            # Who signs is looked at here; times below, by the time that is given.
            claims = jwt.decode(token, key.key, [str(algorithm)], options=_SIGNATURE_ALONE)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            continue
        return _looked_at(claims, rules, now_s, key.fingerprint)
    raise AuthenticationError("a token that none of the keys has signed")


_SIGNATURE_ALONE: Final[Any] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _looked_at(claims: dict[str, Any], rules: TokenRules, now_s: float, fingerprint: str) -> TokenLogin:
    user, until = claims.get(rules.user), _time_of(claims, "exp")
    if not isinstance(user, str) or not can_be_user(user):
        raise AuthenticationError(f"a token without a user in {rules.user!r}")
    if until is None or until <= now_s:
        raise AuthenticationError("a token that has ended, or has no end")
    begins = _time_of(claims, "nbf") if "nbf" in claims else 0.0
    if begins is None or begins > now_s:
        raise AuthenticationError("a token that does not hold yet")
    audience = claims.get("aud", [])
    if rules.audience and rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise AuthenticationError("a token for another audience")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise AuthenticationError("a token of another issuer")
    return TokenLogin(user, until, fingerprint)


def _time_of(claims: dict[str, Any], name: str) -> float | None:
    """A time; None where it is none."""
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 1e12 else None
