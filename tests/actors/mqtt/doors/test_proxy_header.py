"""Headers of the PROXY protocol, byte by byte."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.mqtt.doors.proxy_header import (
    HEADER_BYTES_MAX,
    LINE_BYTES_MAX,
    ProxyHeader,
    ProxyHeaderError,
    proxy_header,
)

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
ports = st.integers(0, 65_535)
ends = st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)) | st.tuples(st.ip_addresses(v=6), st.ip_addresses(v=6))


def line(source: object, destination: object, port: int) -> bytes:
    """Version 1."""
    family = "TCP4" if isinstance(source, ipaddress.IPv4Address) else "TCP6"
    return f"PROXY {family} {source} {destination} {port} 1883\r\n".encode()


def binary(command: int, family: int, body: bytes) -> bytes:
    """Version 2."""
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


@given(ends, ports, st.binary(max_size=50), st.booleans(), st.binary(max_size=20))
def test_headers_are_read_whatever_follows(
    pair: tuple[ipaddress.IPv4Address, ipaddress.IPv4Address], port: int, rest: bytes, second: bool, added: bytes
) -> None:
    source, destination = pair
    body = source.packed + destination.packed + port.to_bytes(2, "big") + (1883).to_bytes(2, "big") + added
    family = 0x11 if source.version == 4 else 0x21
    data = binary(0x21, family, body) if second else line(source, destination, port)
    assert len(data) <= LINE_BYTES_MAX or second
    assert proxy_header(data + rest) == ProxyHeader(len(data), (str(source), port))
    for end in range(len(data)):
        assert proxy_header(data[:end]) is None


@given(st.binary(max_size=40), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]))
def test_no_bytes_are_anything_else(data: bytes, begun: bytes) -> None:
    try:
        found = proxy_header(begun + data)
    except ProxyHeaderError:
        return
    assert found is None or found.size <= len(begun + data)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n",
        binary(0x20, 0x00, b""),
        binary(0x20, 0x11, bytes(12)),
        binary(0x21, 0x00, b"x" * 30),
        binary(0x21, 0x31, bytes(216)),
    ],
)
def test_connections_of_the_proxy_itself_and_families_that_are_not_ours(data: bytes) -> None:
    assert proxy_header(data) == ProxyHeader(len(data), None)


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 \r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
        b"PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"x" * LINE_BYTES_MAX,
        binary(0x31, 0x11, bytes(12)),
        binary(0x22, 0x11, bytes(12)),
        binary(0x21, 0x11, bytes(11)),
        binary(0x21, 0x21, bytes(35)),
        SIGNATURE + b"\x21\x11" + HEADER_BYTES_MAX.to_bytes(2, "big"),
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        proxy_header(data)
