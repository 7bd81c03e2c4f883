"""Messages as the API gives them: payloads as text where they are that, else in Base64, long ones cut."""

from __future__ import annotations

import base64
from typing import Any, Final

from ..client.messages import Message

PAYLOAD_BYTES_MAX: Final = 16 * 1024


def message_json(message: Message) -> dict[str, Any]:
    """{"topic", "payload" or "payload_base64", "bytes", "cut", "position", "time", "qos", "retain", "publisher"};
    "damaged" where there is no payload."""
    payload = message.payload[:PAYLOAD_BYTES_MAX]
    cut = len(message.payload) > PAYLOAD_BYTES_MAX
    row: dict[str, Any] = {
        "topic": message.topic,
        "position": str(message.position),
        "time": message.time.timestamp(),
        "bytes": len(message.payload),
        "cut": cut,
        "qos": message.qos,
        "retain": message.retain,
        "publisher": message.publisher,
    }
    if message.damaged:
        row["damaged"] = message.damaged
    try:
        row["payload"] = payload.decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError:
        row["payload_base64"] = base64.b64encode(payload).decode()
    return row
