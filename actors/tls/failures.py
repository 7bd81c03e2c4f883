"""Why a TLS handshake failed, in one of a few words, so that what is counted by them is bounded."""

from __future__ import annotations

import ssl
from typing import Final

from ..mqtt.doors.proxy_header import ProxyHeaderError

TIMED_OUT: Final = "too slow"
MADE_WAY: Final = "made way for others"
LEFT: Final = "client left"
NO_CERTIFICATE: Final = "no client certificate"
BAD_CERTIFICATE: Final = "bad client certificate"
NOT_TLS: Final = "not TLS"
NO_HEADER: Final = "no header of a proxy"
OTHER: Final = "other"

# OpenSSL's reasons (ssl.SSLError.reason).
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": NO_CERTIFICATE,
    "HTTP_REQUEST": NOT_TLS,
    "HTTPS_PROXY_REQUEST": NOT_TLS,
    "WRONG_VERSION_NUMBER": NOT_TLS,
    "BAD_RECORD_TYPE": NOT_TLS,
    "RECORD_TOO_SMALL": NOT_TLS,
    "BAD_CLIENTHELLO": NOT_TLS,
    "UNEXPECTED_MESSAGE": NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": NOT_TLS,
    "ENCRYPTED_LENGTH_TOO_LONG": NOT_TLS,
    "UNSUPPORTED_PROTOCOL": "old TLS",
    "VERSION_TOO_LOW": "old TLS",
    "NO_SHARED_CIPHER": "no common cipher",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "no common cipher",
    # What the client told.
    "TLSV1_ALERT_UNKNOWN_CA": "client distrusts our certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "client distrusts our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "client distrusts our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "client distrusts our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "client distrusts our certificate",
}
# X509_V_ERR_*, of those that verify a client's certificate (openssl-verification-options(1)).
_VERIFICATION: Final = {
    10: "expired client certificate",
    23: "revoked client certificate",
    3: "no revocation list of its issuer",
    12: "revocation list overdue",
}


def failure_of(error: BaseException) -> str:
    """The word for what a handshake was ended by."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFICATION.get(error.verify_code, BAD_CERTIFICATE)
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", OTHER)
    if isinstance(error, ProxyHeaderError):
        return NO_HEADER
    if isinstance(error, ConnectionAbortedError | TimeoutError):  # uvloop's word for a handshake that takes too long
        return TIMED_OUT
    return LEFT if isinstance(error, ConnectionError) else OTHER
