"""MQTT's elementary types (1.5): integers, variable byte integers, UTF-8 strings, binary data."""

from __future__ import annotations

from struct import Struct
from typing import Final

from .packets import MALFORMED_PACKET, MqttProtocolError

VARINT_MAX: Final = 268_435_455
STRING_BYTES_MAX: Final = 65_535

pack_u16 = Struct(">H").pack
pack_u32 = Struct(">I").pack


def malformed(statement: str, problem: str) -> MqttProtocolError:
    """The error for a packet that cannot be parsed."""
    return MqttProtocolError(MALFORMED_PACKET, statement, problem)


def encode_varint(value: int) -> bytes:
    """A variable byte integer in the fewest bytes [MQTT-1.5.5-1]. Raises ValueError outside 0..VARINT_MAX."""
    if 0 <= value < 128:
        return bytes((value,))
    if not 0 <= value <= VARINT_MAX:
        raise ValueError(f"{value} does not fit a variable byte integer: at most {VARINT_MAX}")
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_size(value: int) -> int:
    """Bytes of `encode_varint(value)`."""
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4


def encode_binary(data: bytes) -> bytes:
    """Binary data with its length (1.5.6). Raises ValueError over 65,535 bytes."""
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes do not fit an MQTT string or binary field: at most {STRING_BYTES_MAX}")
    return pack_u16(len(data)) + data


def encode_utf8(text: str) -> bytes:
    """A UTF-8 string with its length (1.5.4). Raises ValueError over 65,535 bytes, for NUL and lone surrogates."""
    if "\0" in text:
        raise ValueError("NUL may not stand in an MQTT string [MQTT-1.5.4-2]")
    return encode_binary(text.encode())


def decode_text(data: bytes) -> str:
    """`data` as text. Raises MqttProtocolError (malformed) for ill-formed UTF-8 and NUL."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise malformed("MQTT-1.5.4-1", f"a string is not well-formed UTF-8: {error.reason}") from None
    if "\0" in text:
        raise malformed("MQTT-1.5.4-2", "a string holds NUL")
    return text


class Body:
    """A reader over one packet's bytes `data[pos:end]`. Every method raises MqttProtocolError past the end."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int, end: int) -> None:
        self.data = data
        self.pos = pos
        self.end = end

    def left(self) -> int:
        """Bytes not read yet."""
        return self.end - self.pos

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        pos = self.pos
        if pos + size > self.end:
            raise malformed("MQTT-4.13.1-1", f"a packet ends {pos + size - self.end} bytes too early")
        self.pos = pos + size
        return self.data[pos : pos + size]

    def u8(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Two bytes, big-endian."""
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        """Four bytes, big-endian."""
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        """A variable byte integer of at most four bytes, as short as possible."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            value |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    raise malformed("MQTT-1.5.5-1", "a variable byte integer is longer than necessary")
                return value
        raise malformed("MQTT-1.5.5-1", "a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        """Binary data after its length."""
        return self.take(self.u16())

    def utf8(self) -> str:
        """A UTF-8 string."""
        return decode_text(self.binary())

    def rest(self) -> bytes:
        """Everything left."""
        return self.take(self.end - self.pos)

    def finish(self, packet: str) -> None:
        """Raises MqttProtocolError when bytes are left over."""
        if self.pos != self.end:
            raise malformed("MQTT-4.13.1-1", f"{packet} has {self.end - self.pos} bytes too many")
