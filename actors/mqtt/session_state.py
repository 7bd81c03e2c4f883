"""A session as it lies in the log (`records.SessionSaved`), so that any broker can go on with it.

Three parts, each msgpack of one array, FORMAT first, written when it changes:

    filters   the subscriptions with their options, whether what is retained on them is still to be sent, and their
              conditions
    will      the will of the last connection (b"": none)
    place     where it stands: the next packet id, the cursor, what is in flight to the client by position, and, only
              where the broker that served the session hands it over, the client's QoS 2 ids that have their PUBREC

A cursor is three columns, since a session with a wildcard stands somewhere in every group: the groups in ascending
order as (first, count) of those without a gap; of their offsets what is above HIGH_BITS (one number where it is the
same for all: as many epochs have gone by); and the rest: the least of it, and how far each is beyond, all in as many
bytes (1, 2 or 4, little-endian) as the farthest needs.

A place that was saved while the session went on is only a beginning: what followed it is not known. So those QoS 2 ids
are never restored from one (they may have been released and given to other publications since; the groups know by their
marks what they hold), and packet ids go on far beyond it (`left_behind`): the client may hold one that was given since
[MQTT-4.3.3-4], and would take another publication with it for a repeat.

Not saved: publications on their way in (`arriving`: their group knows them), and whatever belongs to a connection.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import msgpack

from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.positions import EPOCH_OFFSET_GAP, Cursor

from .codec.packets import Will
from .codec.properties import WILL, WILL_DELAY_S, read_properties, write_properties
from .codec.wire import Body
from .session import PACKET_ID_MAX, InFlight, Session, SessionSubscription

FORMAT = 3

# Packet ids passed over when nobody handed the session over: a session is saved before it has used so many.
IDS_SKIPPED = 1 << 15

# Epochs begin EPOCH_OFFSET_GAP apart: above these bits groups that have gone through as many stand alike.
HIGH_BITS = EPOCH_OFFSET_GAP.bit_length() - 1
_LOW = (1 << HIGH_BITS) - 1
# By bytes a number.
_BEYOND = {1: "B", 2: "H", 4: "I"}

# A cursor as it is written: groups, what is above HIGH_BITS, the least of the rest, and how far each is beyond.
Columns = tuple[list[int], int | list[int], int, bytes]

# Subscriptions read or written in one step.
STEP = 100

# Cursors of sessions that had nothing in flight, read lately: those that were left together stand at the same place.
PLACES_REMEMBERED = 16

_OFFSET_MAX = 2**63 - 1
_TOPIC_BYTES_MAX = 65_535


# -- written


def filters_of(session: Session) -> bytes:
    """The subscriptions. Those of many are kept until they change: they are asked for again and again."""
    writing = writing_filters(session)
    while True:
        try:
            next(writing)
        except StopIteration as end:
            written: bytes = end.value
            return written


def writing_filters(session: Session) -> Generator[None, None, bytes]:
    """`filters_of` step by step, as they are when it begins: where they do not change meanwhile it finds them kept."""
    changes, written = session.filters_written
    if changes == session.changes:
        return written
    changes, listed, owed = session.changes, list(session.subscriptions.items()), session.owed
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(2)
    packer.pack(FORMAT)
    packer.pack_array_header(len(listed))
    for at in range(0, len(listed), STEP):
        for name, options in listed[at : at + STEP]:
            packer.pack(_filter_row(name, options, name in owed))
        yield
    written = bytes(packer.bytes())
    if session.changes == changes:
        _keep(session, written)
    return written


def _filter_row(name: bytes, options: SessionSubscription, owed: bool) -> tuple[Any, ...]:
    *plain, where = options
    if where:
        return name, *plain, owed, where
    return (name, *plain, True) if owed else (name, *plain)


def _keep(session: Session, filters: bytes) -> None:
    if len(session.subscriptions) > STEP:
        session.filters_written = session.changes, filters


def will_bytes(will: Will | None) -> bytes:
    """A will."""
    if will is None:
        return b""
    fields = (will.topic, will.payload, will.qos, will.retain, write_properties(will.properties))
    packed: bytes = msgpack.packb((FORMAT, *fields))
    return packed


def place_of(session: Session, handed_over: bool = False) -> bytes:
    """Where the session stands; `handed_over`: it goes no further here."""
    flying = [(i, *entry) for entries in (session.unacknowledged, session.pending) for i, entry in entries.items()]
    if session.shared:  # what is not QoS 2 others get where this client goes
        flying = [each for each in flying if each[3] == 2 or each[0] not in session.shared]
    return _pack_place(
        session.next_id,
        session.cursor,
        flying,
        [(i, *entry) for i, entry in session.released.items()],
        session.received if handed_over else {},
    )


def _pack_place(
    next_id: int, cursor: Mapping[int, int], flying: list[Any], released: list[Any], received: Mapping[int, int]
) -> bytes:
    columns = _cursor_columns(cursor)
    packed: bytes = msgpack.packb((FORMAT, next_id, columns, flying, released, list(received.items())))
    return packed


def _cursor_columns(cursor: Mapping[int, int]) -> Columns:
    """A cursor as it is written. Many stand where the one before stood: all that leave together, and those whose broker
    is gone."""
    if cursor != _written.cursor:
        _written.columns = _columns(cursor)
        _written.cursor = dict(cursor)
    return _written.columns


class _Written:
    """The cursor that was written last."""

    def __init__(self) -> None:
        self.cursor: Cursor = {}
        self.columns: Columns = ([], 0, 0, b"")


_written = _Written()


def _columns(cursor: Mapping[int, int]) -> Columns:
    groups = sorted(cursor)
    spans: list[int] = []
    if groups and groups[-1] - groups[0] == len(groups) - 1:
        spans = [groups[0], len(groups)]
    else:
        for group in groups:
            if spans and spans[-2] + spans[-1] == group:
                spans[-1] += 1
            else:
                spans += (group, 1)
    offsets = [cursor[group] for group in groups]
    high = [offset >> HIGH_BITS for offset in offsets]
    same = not high or min(high) == max(high)
    low = [offset & _LOW for offset in offsets]
    least, most = min(low, default=0), max(low, default=0)
    kind = _BEYOND[1] if most - least < 1 << 8 else _BEYOND[2] if most - least < 1 << 16 else _BEYOND[4]
    beyond = array(kind, [each - least for each in low]).tobytes()
    return spans, (high[0] if high else 0) if same else high, least, beyond


def _cursor_of(columns: Any) -> Cursor:
    """The inverse. Raises what is among `_UNREADABLE`."""
    spans, high, least, data = columns
    count = sum(spans[1::2])
    if type(data) is not bytes or count < 0 or (count and len(data) % count) or (data and not count):
        raise ValueError("a cursor's groups and offsets do not go together")
    beyond = array(_BEYOND[len(data) // count] if count else _BEYOND[1], data)
    high = [high] * count if type(high) is int else high
    numbers = (*spans, *high, least)
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) > _OFFSET_MAX:
        raise ValueError(f"a cursor has something else than numbers of 0 to {_OFFSET_MAX}")
    groups = [
        group for first, several in zip(spans[::2], spans[1::2], strict=True) for group in range(first, first + several)
    ]
    offsets = [(above << HIGH_BITS) + least + low for above, low in zip(high, beyond, strict=True)]
    if max(offsets, default=0) > _OFFSET_MAX:
        raise ValueError(f"a cursor stands beyond {_OFFSET_MAX}")
    return dict(zip(groups, offsets, strict=True))


# -- read


def restore(session: Session, filters: bytes, place: bytes) -> None:
    """Fill a new `session` with what was saved. Raises PeerError, the session untouched, for anything else."""
    for _ in restoring(session, filters, place):
        pass


def restoring(session: Session, filters: bytes, place: bytes) -> Iterator[None]:
    """`restore` of a session that may have many subscriptions, step by step; it is done at the end."""
    found_subscriptions: dict[bytes, SessionSubscription] = {}
    owed: list[bytes] = []
    try:
        for some in _filters(filters):
            for name, subscription, is_owed in some:
                found_subscriptions[name] = subscription
                if is_owed:
                    owed.append(name)
            yield
        next_id, cursor, pending, released, received = _place(place)
    except _UNREADABLE as error:
        raise PeerError(f"the saved state of session {session.client_id!r} cannot be read: {error}") from None
    session.subscriptions, session.next_id, session.cursor = found_subscriptions, next_id, cursor
    session.pending, session.released, session.received = pending, released, received
    session.owed = frozenset(owed)
    session.changes += 1
    _keep(session, filters)


def left_behind(place: bytes, floor: Mapping[int, int]) -> bytes:
    """A session goes on from a place that it has left, its broker died; see the module's docstring.

    `floor`: group -> an offset before which all is known to be acknowledged. Raises PeerError.
    """
    try:
        next_id, cursor, pending, released, _ = _place(place)
    except _UNREADABLE as error:
        raise PeerError(f"a saved place cannot be read: {error}") from None
    cursor = {group: max(offset, floor.get(group, 0)) for group, offset in cursor.items()}
    flying, open_still = (
        [(i, *entry) for i, entry in entries.items() if entry[3] or entry[1] >= floor.get(entry[0], 0)]
        for entries in (pending, released)
    )
    return _pack_place((next_id - 1 + IDS_SKIPPED) % PACKET_ID_MAX + 1, cursor, flying, open_still, {})


def will_of(data: bytes) -> Will | None:
    """The inverse of `will_bytes`. Raises PeerError."""
    if not data:
        return None
    try:
        topic, payload, qos, retain, properties = _fields(data, 5)
        if type(payload) is not bytes or type(properties) is not bytes:
            raise ValueError("a will's payload or properties are no bytes")
        body = Body(properties, 0, len(properties))
        found = read_properties(body, WILL)
        body.finish("the will's properties")
        return Will(_name(topic), payload, _number(qos, 2), _flag(retain), found)
    except _UNREADABLE as error:
        raise PeerError(f"a saved will cannot be read: {error}") from None


def will_delay_s(will: Will | None) -> int:
    """How long a will waits for its client to come back (0 for none)."""
    return int((will.properties or {}).get(WILL_DELAY_S, 0)) if will is not None else 0


def delayed(will: Will, wait_s: int) -> Will:
    """The will with another delay."""
    return dataclasses.replace(will, properties={**(will.properties or {}), WILL_DELAY_S: wait_s})


_places: dict[bytes, Cursor] = {}
# How a place begins: an array of six, FORMAT first; and by its first byte, how long the next id is.
_PLACE_HEAD = bytes([0x96, FORMAT])
_NEXT_ID_BYTES = {**{bytes([small]): 1 for small in range(0x80)}, b"\xcc": 2, b"\xcd": 3}


_UNREADABLE = (ValueError, TypeError, LookupError, msgpack.UnpackException, PeerError, UsageError)


def _fields(data: bytes, count: int) -> tuple[Any, ...]:
    version, *fields = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    if version != FORMAT:
        raise ValueError(f"format {version!r}, not {FORMAT}")
    if len(fields) != count:
        raise ValueError(f"{len(fields)} fields, not {count}")
    return tuple(fields)


def _filters(data: bytes) -> Iterator[list[tuple[bytes, SessionSubscription, bool]]]:
    (listed,) = _fields(data, 1)
    for at in range(0, len(listed), STEP):
        yield [_filter(*fields) for fields in listed[at : at + STEP]]


def _place(
    data: bytes,
) -> tuple[int, Cursor, dict[int, InFlight], dict[int, InFlight], dict[int, int]]:
    """(next id, cursor, pending, released, received). Nobody changes the cursor: others may stand there too."""
    next_id_bytes = _NEXT_ID_BYTES.get(data[2:3], 0) if data[:2] == _PLACE_HEAD else 0
    where = data[2 + next_id_bytes :]
    if next_id_bytes and (known := _places.get(where)) is not None:
        return _packet_id(msgpack.unpackb(data[2 : 2 + next_id_bytes])), known, {}, {}, {}
    next_id, columns, flying, released, received = _fields(data, 5)
    found_pending = {_packet_id(i): _in_flight(entry) for i, *entry in flying}
    found_released = {_packet_id(i): _in_flight(entry) for i, *entry in released}
    if not found_pending.keys().isdisjoint(found_released):
        raise ValueError("a packet id is used twice")
    found_received = {_packet_id(i): _number(g, _OFFSET_MAX) for i, g in received}
    cursor = _cursor_of(columns)
    if next_id_bytes and not (flying or released or received):
        if len(_places) >= PLACES_REMEMBERED:
            _places.clear()
        _places[where] = cursor
    return _packet_id(next_id), cursor, found_pending, found_released, found_received


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


def _filter(
    name: Any,
    qos: Any,
    no_local: Any,
    as_published: Any,
    handling: Any,
    identifier: Any,
    owed: Any = False,
    where: Any = "",
) -> tuple[bytes, SessionSubscription, bool]:
    known = None if identifier is None else _number(identifier, 268_435_455)
    options = _number(qos, 2), _flag(no_local), _flag(as_published), _number(handling, 2), known
    return _name(name), SessionSubscription(*options, _where(where)), _flag(owed)


def _where(text: Any) -> str:
    if type(text) is not str:
        raise ValueError("a condition is no text")
    if text:
        predicate(text)
    return text


def _in_flight(fields: list[Any]) -> InFlight:
    group, offset, qos, retained = fields
    if qos not in (1, 2):
        raise ValueError(f"QoS {qos!r} in flight")
    return _number(group, _OFFSET_MAX), _number(offset, _OFFSET_MAX), _number(qos, 2), _flag(retained)
