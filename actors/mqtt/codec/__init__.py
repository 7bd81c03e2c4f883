"""MQTT packets to bytes and back, 3.1.1 and 5, without I/O; the packets are in `packets`, their properties in
`properties`."""

from __future__ import annotations

from .encode import (
    encode_acks,
    encode_answer,
    encode_packet,
    encode_pubacks,
    encode_pubcomps,
    encode_publish,
    encode_pubrecs,
    encode_pubrels,
    encode_qos0_run,
    encode_qos_run,
    farewell,
    publish_size,
)
from .properties import write_properties
from .reader import PACKET_BYTES_MIN, PacketReader

__all__ = [
    "PACKET_BYTES_MIN",
    "PacketReader",
    "encode_acks",
    "encode_answer",
    "encode_packet",
    "encode_pubacks",
    "encode_pubcomps",
    "encode_publish",
    "encode_pubrecs",
    "encode_pubrels",
    "encode_qos0_run",
    "encode_qos_run",
    "farewell",
    "publish_size",
    "write_properties",
]
