"""The MQTT codec, 3.1.1 and 5, in one place to import from: reading in `reader`, encoding in `encode`.

No I/O: bytes in, packets out and the reverse. Packets and reason codes are in `packets`, properties in
`properties`.
"""

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
