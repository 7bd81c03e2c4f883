"""MQTT clients that ask a broker what they may do: publish, and see the reason code; listen, and see what comes."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Final, TypeVar

from lexicast.actors.mqtt.codec import PacketReader, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    PUBACK,
    V5,
    AckRun,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PublishRun,
    SubAck,
    Subscribe,
    SubscriptionOptions,
)
from lexicast.cluster.errors import PeerError

from ..stage.servers import Address

T = TypeVar("T")
PACKET_BYTES_MAX: Final = 1024 * 1024
TIMEOUT_S: Final = 10.0
NOT_AUTHORIZED: Final = 0x87


class AskedClient:
    """One connection, MQTT 5, that waits for each answer. Raises PeerError where the broker has closed it."""

    def __init__(self, address: Address, user: str, password: str, client_id: str) -> None:
        """`user` "": it does not log in."""
        self._socket = socket.create_connection((address.host, address.port), TIMEOUT_S)
        self._reader = PacketReader(PACKET_BYTES_MAX, from_client=False, version=V5)
        self._packets: deque[Any] = deque()
        self._heard: list[bytes] = []
        self.user = user
        self.client_id = client_id
        secret = password.encode() if user else None
        self._send(Connect(V5, client_id, user_name=user or None, password=secret))
        answer = self._expect(ConnAck)
        if answer.reason_code:
            raise PeerError(f"user {user!r}, client {client_id!r}: refused with 0x{answer.reason_code:02x}")

    def may_publish(self, topic: bytes) -> bool:
        """Publish, QoS 1, and say whether that was taken."""
        self._send(Publish(topic, b"asked", 1, packet_id=1))
        while True:
            answer = self._next()
            if isinstance(answer, AckRun) and answer.kind == PUBACK:
                return True
            if isinstance(answer, PubAck):
                return answer.reason_code != NOT_AUTHORIZED

    def listen(self, *filters: bytes) -> None:
        """Subscribe to these, QoS 0."""
        self._send(Subscribe(1, [(name, SubscriptionOptions()) for name in filters]))
        self._expect(SubAck)

    def heard(self) -> list[bytes]:
        """The topics of what has come since the last time; all that the broker had sent is there."""
        self._send(PingReq())
        self._expect(PingResp)
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _send(self, packet: Any) -> None:
        self._socket.sendall(encode_packet(packet, V5))

    def _expect(self, kind: type[T]) -> T:
        while True:
            packet = self._next()
            if isinstance(packet, kind):
                return packet

    def _next(self) -> Any:
        while not self._packets:
            try:
                data = self._socket.recv(65_536)
            except OSError as error:
                raise PeerError(f"client {self.client_id!r}: {error}") from None
            if not data:
                raise PeerError(f"client {self.client_id!r}: the broker has closed the connection")
            self._packets.extend(self._reader.feed(data))
        packet = self._packets.popleft()
        if isinstance(packet, PublishRun):
            self._heard += [packet.topic] * len(packet.payloads)
        return packet
