"""A session's state as it lies in the log (`SessionSaved.state`), so that any broker can go on with the session.

msgpack of one array, FORMAT first. Saved is what the session cannot do without after a broker's death: subscriptions
with their options, the cursor, what is in flight to the client by position, the client's QoS 2 ids that were answered
with PUBREC, the next packet id, the will, the expiry. Not saved: publications on their way in (`arriving`: their group
knows them by their marks), and whatever belongs to a connection.
"""

from __future__ import annotations

from typing import Any

import msgpack

from lexicast.cluster.errors import PeerError

from .mqtt_packets import V5, V311, Will
from .mqtt_properties import WILL, read_properties, write_properties
from .mqtt_wire import Body
from .session import PACKET_ID_MAX, InFlight, Session, Subscription

FORMAT = 1

_OFFSET_MAX = 2**63 - 1
_EXPIRY_MAX = 2**32 - 1
_TOPIC_BYTES_MAX = 65_535


def to_state(session: Session) -> bytes:
    """`session` as bytes."""
    will = session.will
    packed: bytes = msgpack.packb(
        (
            FORMAT,
            session.version,
            session.expiry_s,
            session.next_id,
            [(name, *subscription) for name, subscription in session.subscriptions.items()],
            list(session.cursor.items()),
            [(i, *entry) for flying in (session.unacknowledged, session.pending) for i, entry in flying.items()],
            list(session.released),
            list(session.received.items()),
            will and (will.topic, will.payload, will.qos, will.retain, write_properties(will.properties)),
        )
    )
    return packed


def from_state(session: Session, data: bytes) -> None:
    """Fill a new `session` with what `to_state` saved. Raises PeerError, the session untouched, for anything else."""
    try:
        fields = msgpack.unpackb(data, use_list=False, strict_map_key=False)
        if fields[0] != FORMAT:
            raise ValueError(f"format {fields[0]!r}, not {FORMAT}")
        _, version, expiry_s, next_id, filters, cursor, flying, released, received, will = fields
        if version not in (V311, V5):
            raise ValueError(f"protocol level {version!r}")
        found_subscriptions = {_name(name): _subscription(rest) for name, *rest in filters}
        found_cursor = {_number(g, _OFFSET_MAX): _number(o, _OFFSET_MAX) for g, o in cursor}
        found_pending = {_packet_id(i): _in_flight(entry) for i, *entry in flying}
        found_released = dict.fromkeys(map(_packet_id, released))
        found_received = {_packet_id(i): _number(g, _OFFSET_MAX) for i, g in received}
        if not found_pending.keys().isdisjoint(found_released):
            raise ValueError("a packet id is used twice")
        found_will = None if will is None else _will(*will)
        found_expiry, found_next = _number(expiry_s, _EXPIRY_MAX), _packet_id(next_id)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException, PeerError) as error:
        raise PeerError(f"the saved state of session {session.client_id!r} cannot be read: {error}") from None
    session.version, session.expiry_s, session.next_id = version, found_expiry, found_next
    session.subscriptions, session.cursor, session.will = found_subscriptions, found_cursor, found_will
    session.pending, session.released, session.received = found_pending, found_released, found_received


def _number(value: Any, maximum: int) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{value!r} is not a number of 0 to {maximum}")
    return value


def _packet_id(value: Any) -> int:
    if not _number(value, PACKET_ID_MAX):
        raise ValueError("packet id 0")
    return int(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _name(value: Any) -> bytes:
    if type(value) is not bytes or not 0 < len(value) <= _TOPIC_BYTES_MAX:
        raise ValueError("a topic or filter is no bytes of 1 to 65,535")
    return value


def _subscription(fields: list[Any]) -> Subscription:
    qos, no_local, as_published, handling, identifier = fields
    known = None if identifier is None else _number(identifier, 268_435_455)
    return Subscription(_number(qos, 2), _flag(no_local), _flag(as_published), _number(handling, 2), known)


def _in_flight(fields: list[Any]) -> InFlight:
    group, offset, qos, retained = fields
    if qos not in (1, 2):
        raise ValueError(f"QoS {qos!r} in flight")
    return _number(group, _OFFSET_MAX), _number(offset, _OFFSET_MAX), _number(qos, 2), _flag(retained)


def _will(topic: Any, payload: Any, qos: Any, retain: Any, properties: Any) -> Will:
    if type(payload) is not bytes or type(properties) is not bytes:
        raise ValueError("a will's payload or properties are no bytes")
    body = Body(properties, 0, len(properties))
    found = read_properties(body, WILL)
    body.finish("the will's properties")
    return Will(_name(topic), payload, _number(qos, 2), _flag(retain), found)
