"""The header with which a proxy says whose connection it passes on: the PROXY protocol, versions 1 and 2. Pure.

Source: "The PROXY protocol, versions 1 & 2" (HAProxy), sections 2.1 and 2.2. What version 2 may add behind the
addresses (TLVs) is passed over.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

# A line of version 1, its end included (section 2.1).
LINE_BYTES_MAX: Final = 107
# The header of version 2 with all that it adds; proxies send some hundred bytes.
HEADER_BYTES_MAX: Final = 4_096

_LINE: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES: Final = 16
_LOCAL: Final = 0x20
_PROXIED: Final = 0x21
# Family and protocol: bytes of an address.
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
_FAMILIES: Final = {b"TCP4": ipaddress.IPv4Address, b"TCP6": ipaddress.IPv6Address}
_PORT_MAX: Final = 65_535


class ProxyHeaderError(ValueError):
    """What a connection begins with is no header."""


class ProxyHeader(NamedTuple):
    """`size`: its bytes; `peer`: (address, port) of the client; None: the proxy's own connection, or not told."""

    size: int
    peer: tuple[str, int] | None


def proxy_header(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with; None: more bytes are needed. Raises ProxyHeaderError."""
    if _begins(data, _SIGNATURE):
        return _version_2(data) if len(data) >= _FIXED_BYTES else None
    if _begins(data, _LINE):
        return _version_1(data)
    raise ProxyHeaderError("neither version 1 nor version 2 of the PROXY protocol")


def _begins(data: bytes, with_: bytes) -> bool:
    return data[: len(with_)] == with_[: len(data)]


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise ProxyHeaderError(f"a line of more than {LINE_BYTES_MAX} bytes")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(end + 2, None)
    if len(words) != 6 or words[1] not in _FAMILIES:
        raise ProxyHeaderError("not PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT")
    try:
        source, _ = (_FAMILIES[words[1]](word.decode("ascii")) for word in words[2:4])
        port, _ = (_port(word) for word in words[4:])
    except ValueError as error:
        raise ProxyHeaderError(str(error)) from None
    return ProxyHeader(end + 2, (str(source), port))


def _port(word: bytes) -> int:
    if not (word.isdigit() and len(word) <= 5 and int(word) <= _PORT_MAX):
        raise ProxyHeaderError("a port that is no number up to 65535")
    return int(word)


def _version_2(data: bytes) -> ProxyHeader | None:
    command, family = data[12], data[13]
    size = _FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if command not in (_LOCAL, _PROXIED):
        raise ProxyHeaderError(f"version and command 0x{command:02x}")
    if size > HEADER_BYTES_MAX:
        raise ProxyHeaderError(f"a header of more than {HEADER_BYTES_MAX} bytes")
    if len(data) < size:
        return None
    width = _ADDRESS_BYTES.get(family, 0)
    if command == _LOCAL or not width:
        return ProxyHeader(size, None)
    if size < _FIXED_BYTES + 2 * width + 4:
        raise ProxyHeaderError("addresses that are cut off")
    ports = _FIXED_BYTES + 2 * width
    source = ipaddress.ip_address(data[_FIXED_BYTES : _FIXED_BYTES + width])
    return ProxyHeader(size, (str(source), int.from_bytes(data[ports : ports + 2], "big")))
