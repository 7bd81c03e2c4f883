"""The HTTP request that asks for a WebSocket, and its answer (RFC 6455, section 4).

`websockets` reads the request and looks at it; here is what it leaves to its caller: how long the request may be, which
paths there are, whose pages may come. No extension is agreed on: with permessage-deflate each connection's bytes would
be its own, and clients that want compression have `lexicast.mqtt`. The one subprotocol is "mqtt" [MQTT-6.0.0-3, -4].
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Final, NamedTuple

from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from .origins import origin_may_connect

# Of a request in all. Browsers' are some 600 bytes; cookies of other servers on the host come along.
HEAD_BYTES_MAX: Final = 8_192
HEAD_END: Final = b"\r\n\r\n"
# "/mqtt" is what clients ask for by custom, "/" what those do that are told no path.
PATHS: Final = ("/mqtt", "/")
SUBPROTOCOLS: Final = (Subprotocol("mqtt"),)

_quiet: Final = logging.getLogger(__name__ + ".requests")
_quiet.setLevel(logging.ERROR)  # what is refused is told by whoever asks here, with the address


class UpgradeAnswer(NamedTuple):
    """What a client is answered. `refusal`: why it gets no WebSocket, in some words that can be counted; "": it does.
    `origin`: whose page it is, "" where it is none."""

    response: bytes
    refusal: str
    origin: str = ""


def upgrade_answer(head: bytes, origins: Collection[str], same_machine: bool) -> UpgradeAnswer:
    """Answer a request's head, HEAD_END included; `origins` and `same_machine` as for `origin_may_connect`."""
    protocol = ServerProtocol(subprotocols=SUBPROTOCOLS, logger=_quiet)
    protocol.receive_data(head)
    request = next(iter(protocol.events_received()), None)
    if not isinstance(request, Request):
        told = b"".join(protocol.data_to_send())  # empty where what came is no HTTP at all
        return UpgradeAnswer(told or _refused(protocol, HTTPStatus.BAD_REQUEST, "This is no HTTP request."), "no HTTP")
    hosts, named = request.headers.get_all("Host"), request.headers.get_all("Origin")
    origin = named[0] if named else ""
    if len(hosts) != 1 or len(named) > 1:  # RFC 9112, section 3.2
        why = "A request has one Host, and one Origin at most."
        return UpgradeAnswer(_refused(protocol, HTTPStatus.BAD_REQUEST, why), "bad request")
    if request.path.partition("?")[0] not in PATHS:
        why = f"MQTT is at {' and '.join(PATHS)}."
        return UpgradeAnswer(_refused(protocol, HTTPStatus.NOT_FOUND, why), "no such path")
    if not origin_may_connect(named[0] if named else None, hosts[0], origins, same_machine):
        why = "Pages of this origin may not connect: see mqtt.ws_origins."
        return UpgradeAnswer(_refused(protocol, HTTPStatus.FORBIDDEN, why), "origin", origin)
    response = protocol.accept(request)
    return UpgradeAnswer(response.serialize(), "" if response.status_code == 101 else "bad request", origin)


def too_long() -> bytes:
    """The answer to a request of more than HEAD_BYTES_MAX."""
    why = f"A request has {HEAD_BYTES_MAX} bytes at most."
    return _refused(ServerProtocol(logger=_quiet), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, why)


def _refused(protocol: ServerProtocol, status: HTTPStatus, why: str) -> bytes:
    return protocol.reject(status, why + "\n").serialize()
