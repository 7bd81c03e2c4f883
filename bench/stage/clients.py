"""MQTT clients of drivers' parts: paho's, or `lexicast.mqtt`'s where it is to be dictionary-aware.

The two are one program: what differs is which module's Client it makes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast.mqtt as aware
from lexicast.cluster.errors import PeerError

HOST: Final = "127.0.0.1"
CONNECT_TIMEOUT_S: Final = 30.0


def make_client(client_id: str, *, is_aware: bool, version: int = 5, in_flight: int | None = None) -> paho.Client:
    """A client of MQTT 5 (or 3.1.1: version 4) that is not connected yet.

    `in_flight`: its publications that are not acknowledged yet, at most; more wait in paho (whose default is 20).
    """
    make = aware.Client if is_aware else paho.Client
    client = make(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion(version))
    if in_flight is not None:
        client.max_inflight_messages_set(in_flight)
    return client


def send_at_once(client: paho.Client) -> None:
    """Sets TCP_NODELAY on its connections: else the kernel holds a small packet back until the one before it is
    acknowledged, up to 40 ms of "latency"."""

    def no_delay(client: paho.Client, userdata: Any, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    client.on_socket_open = no_delay


def connect_client(client: paho.Client, port: int, connected: Callable[[], object] = lambda: None) -> None:
    """Connects and starts the network thread; `connected` is called on every CONNACK. Raises `PeerError`."""
    accepted = threading.Event()
    refused: list[str] = []

    def on_connect(client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            refused.append(str(reason))
        else:
            connected()
        accepted.set()

    client.on_connect = on_connect
    client.connect(HOST, port)
    client.loop_start()
    if not accepted.wait(CONNECT_TIMEOUT_S) or refused:
        raise PeerError(f"the broker refused the connection: {refused or 'no answer'}")


def close_client(client: paho.Client) -> None:
    """Disconnects and ends the network thread."""
    client.disconnect()
    client.loop_stop()
