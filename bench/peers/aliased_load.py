"""The load of one topic to subscribers that take topic aliases: deliveries have the topic the first time alone."""

from __future__ import annotations

import socket

from .loadgen import LOST_AFTER_S, READ_BYTES, DeliveryError, LoadSubscriber, OpenLoad, Receiver
from .wire import HandshakeStep, MqttWire, mqtt_frame

_TAKES_ALIASES = b"\x03\x22\xff\xff"


class AliasWire(MqttWire):
    """MQTT 5 of clients that take topic aliases."""

    def __init__(self) -> None:
        super().__init__(5)

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """As without, but for CONNECT's Topic Alias Maximum."""
        first, *others = super().opening(client_id, topic, qos)
        encoded = client_id.encode()
        body = b"\0\4MQTT\5\2\0\0" + _TAKES_ALIASES + len(encoded).to_bytes(2, "big") + encoded
        return [HandshakeStep(mqtt_frame(0x10, body), first.answer), *others]


class OpenAliased(OpenLoad):
    """A load whose second message tells how the deliveries look."""

    def _first_delivery(self, sock: socket.socket, name: str) -> bytes:
        self.publisher.send_up_to(2)
        data = b""
        sock.settimeout(LOST_AFTER_S)
        try:
            while True:
                told = self._wire.next_packet(data)
                if told is not None and self._wire.next_packet(data[told.length :]) is not None:
                    return data[told.length :]
                data += sock.recv(READ_BYTES)
        except TimeoutError:
            raise DeliveryError(f"{name} did not get the first messages within {LOST_AFTER_S:.0f} s") from None
        finally:
            sock.setblocking(False)

    def _make_subscriber(self, sock: socket.socket, name: str, topic: str, first: bytes) -> Receiver:
        layout = self._wire.delivery_layout(first, self.load.payload_size)
        return LoadSubscriber(sock, name, layout, 2, self.load.verify)
