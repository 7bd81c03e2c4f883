"""The upgrade to WebSocket: what is asked, what is answered, whose pages may come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.mqtt.websocket.origins import origin_may_connect
from lexicast.actors.mqtt.websocket.upgrade import upgrade_answer

from ....support.websockets import ACCEPT, request


def answered(head: bytes, *origins: str, same_machine: bool = True) -> tuple[int, str]:
    """The status, and why it is no WebSocket."""
    answer = upgrade_answer(head, origins, same_machine)
    version, status, _ = answer.response.split(b" ", 2)
    assert version == b"HTTP/1.1"
    assert answer.response.count(b"\r\n\r\n") == 1
    assert (status == b"101") == (not answer.refusal)
    return int(status), answer.refusal


@pytest.mark.mqtt("MQTT-6.0.0-4")
def test_it_is_answered_as_the_standard_says() -> None:
    response = upgrade_answer(request(), (), True).response
    assert b"\r\nSec-WebSocket-Accept: " + ACCEPT + b"\r\n" in response
    assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in response  # [MQTT-6.0.0-4]


@pytest.mark.parametrize("path", ["/", "/mqtt", "/mqtt?token=x"])
@pytest.mark.parametrize("offered", ["mqtt", "mqttv3.1, mqtt", "x,mqtt , y"])
def test_paths_and_subprotocols(path: str, offered: str) -> None:
    assert answered(request(path, sec_websocket_protocol=offered)) == (101, "")


def test_compression_is_not_agreed_on() -> None:
    asked = request(sec_websocket_extensions="permessage-deflate; client_max_window_bits")
    answer = upgrade_answer(asked, (), True)
    assert not answer.refusal
    assert b"extensions" not in answer.response.lower()


@pytest.mark.mqtt("MQTT-6.0.0-3")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request(sec_websocket_protocol=None), 400),
        (request(sec_websocket_protocol="mqttv3.1"), 400),
        (request(sec_websocket_protocol="chat"), 400),
        (request(sec_websocket_key=None), 400),
        (request(sec_websocket_key="c2hvcnQ="), 400),
        (request(sec_websocket_version="12"), 400),
        (request(upgrade="h2c"), 426),
        (request(connection="close"), 426),
        (request(upgrade=None, connection=None), 426),
        (request(host=None), 400),
        (request().replace(b"\r\n\r\n", b"\r\nHost: two\r\n\r\n"), 400),
        (request(origin="http://a").replace(b"\r\n\r\n", b"\r\nOrigin: http://b\r\n\r\n"), 400),
        (request("/other"), 404),
        (request("/mqtt/x"), 404),
        (request("http://localhost/mqtt"), 404),
        (request().replace(b"GET", b"POST"), 405),
        (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 505),
        (request().replace(b"HTTP/1.1", b"HTTP/2"), 400),
        (request(content_length="3"), 400),
        (request(transfer_encoding="chunked"), 400),
        (request().replace(b"Host", b"Ho st"), 400),
        (request().replace(b"\r\nUpgrade", b"\nUpgrade"), 400),
        (b"\x10\x0c\0\4MQTT\4\2\0\0\0\0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_what_is_no_such_request_is_refused(head: bytes, status: int) -> None:
    got, why = answered(head)
    assert got == status
    assert why


@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 20))
def test_any_bytes_are_answered(noise: bytes, at: int, left_out: int) -> None:
    head = request(origin="http://localhost")
    for made in (noise, head[:at] + noise + head[at + left_out :]):
        answered(made.replace(b"\r\n\r\n", b"") + b"\r\n\r\n")


HERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("origin", "host", "listed", "same_machine", "may"),
    [
        (None, "broker:8083", (), True, True),  # no page
        ("http://localhost:8000", "localhost:8083", (), True, True),
        (HERE, "127.0.0.1:8083", (), True, True),
        (HERE, "localhost:8083", (), True, False),
        ("http://[::1]", "[::1]:8083", (), True, True),
        ("http://evil.example", "localhost:8083", (), True, False),
        ("http://evil.example", "evil.example:8083", (), True, False),  # its name leads to this machine
        ("http://broker.example", "broker.example:8083", (), False, True),
        ("http://page.example", "broker.example:8083", (), False, False),
        ("http://page.example", "broker.example:8083", ("https://page.example",), False, False),
        ("https://page.example", "broker.example:8083", ("https://page.example/",), False, True),
        ("https://Page.example", "broker.example:8083", ("https://page.example",), True, True),
        ("https://page.example.evil", "broker.example:8083", ("https://page.example",), True, False),
        ("null", "localhost", (), True, False),  # a page of a file, or in a sandbox
        ("null", "localhost", ("null",), True, True),
        ("null", "null", (), True, False),
        ("http://evil.example", "localhost", ("*",), True, True),
        ("", "", (), True, False),
        ("http://[", "[", (), True, False),
        ("http://localhost.evil.example", "localhost.evil.example", (), True, False),
        ("http://app.localhost", "app.localhost:1", (), True, True),
    ],
)
def test_whose_pages_may_connect(
    origin: str | None, host: str, listed: tuple[str, ...], same_machine: bool, may: bool
) -> None:
    assert origin_may_connect(origin, host, listed, same_machine) is may


def test_a_page_that_may_not_is_told_where_it_is_decided() -> None:
    asked = request(origin="http://evil.example", host="localhost:8083")
    answer = upgrade_answer(asked, (), True)
    assert (answer.refusal, answer.origin) == ("origin", "http://evil.example")
    assert answer.response.startswith(b"HTTP/1.1 403 ")
    assert answer.response.endswith(b"see mqtt.ws_origins.\n")
    assert answered(asked, "http://evil.example") == (101, "")
