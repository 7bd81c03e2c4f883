"""The address of a Ray, and whether one answers there: `ray.init` would try a dead one for more than ten minutes.

What listens there must also speak like Ray's head, which is a gRPC server: after a connection's preface such a server
sends its SETTINGS at once (RFC 9113, section 3.4). Whatever else has the port (a database, a web server, a cluster's
MQTT port) says something different or nothing.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from importlib import import_module
from typing import Any, Final

from ray._private.services import get_ray_address_from_environment

from lexicast.cluster.errors import UnavailableError, UsageError

from .token import use_own_token

REACH_TIMEOUT_S: Final = 5.0
RAY_CLIENT: Final = "ray://"
RAY_ADDRESS: Final = "RAY_ADDRESS"

_FRAME_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4
# The client's preface, and an empty SETTINGS frame.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


def check_ray(address: str) -> str:
    """The address of the Ray that answers at `address`: "auto", HOST:PORT or ray://HOST:PORT. Blocking, seconds.

    A Ray found on this machine will be shown the user's token. Raises UnavailableError when none answers, UsageError
    when the address is none.
    """
    source = ""
    if address == "auto":
        try:
            address = str(get_ray_address_from_environment("auto", None))
        except ConnectionError:
            raise UnavailableError(
                "no Ray runs on this machine: start one with `ray start --head`, or give its address"
            ) from None
        source = f" (from {RAY_ADDRESS})" if os.environ.get(RAY_ADDRESS) else ""
        if not source:
            use_own_token()
    _check(address, source)
    return address


def _check(address: str, source: str) -> None:
    host, colon, port = address.removeprefix(RAY_CLIENT).rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 2**16):
        raise UsageError(f"{address!r}{source} is no Ray address: write auto, HOST:PORT or ray://HOST:PORT")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT_S)) as sock:
            sock.settimeout(REACH_TIMEOUT_S)
            sock.sendall(_PREFACE)
            speaks = _is_settings(sock)
    except TimeoutError:
        raise UnavailableError(f"nobody answers at {address}{source} within {REACH_TIMEOUT_S:.0f} s: {_HINT}") from None
    except OSError as error:
        raise UnavailableError(f"no Ray answers at {address}{source} ({error.strerror or error}): {_HINT}") from None
    if not speaks:
        raise UnavailableError(f"what listens at {address}{source} is no Ray: {_HINT}")


def is_open(address: str) -> bool:
    """Whether the Ray at HOST:PORT obeys whoever reaches it: whether its GCS answers without a token. Blocking.

    Ray's processes listen on all addresses, and running code is what they are for.
    """
    grpc: Any = import_module("grpc")  # Ray's; it has no types
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(_CHECK_ALIVE, bytes, bytes)
        try:
            ask(b"", timeout=REACH_TIMEOUT_S)
        except grpc.RpcError:  # UNAUTHENTICATED; or it is just going, which is told by who joins it
            return False
    return True


# Takes an empty message, and changes nothing.
_CHECK_ALIVE: Final = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_HINT: Final = "start one with `ray start --head`, or correct the address"


def _is_settings(sock: socket.socket) -> bool:
    """Whether the first frame that comes is a server's SETTINGS, of stream 0."""
    head = b""
    while len(head) < _FRAME_HEAD_BYTES:
        more = sock.recv(_FRAME_HEAD_BYTES - len(head))
        if not more:
            return False
        head += more
    return head[3] == _SETTINGS and head[5:] == bytes(4)
