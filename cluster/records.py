"""Control records: everything in a group's log that is not a publication.

Each is one msgpack array `[type, ...]`. The store applies them to its tables in the transaction that appends them,
so that a table is always what replaying the log gives (one replication, one recovery, one auditor).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias, get_origin, get_type_hints

import msgpack

from .errors import PeerError


class EpochStart(NamedTuple):
    """First record of an epoch; its own offset is the epoch's starting offset."""

    epoch: int
    previous_last: int
    leader: str


class Subscribed(NamedTuple):
    """A broker's back-end subscription; the record's offset is the cut between past and future."""

    broker: str
    incarnation: int
    filter: str
    time_min_us: int
    time_max_us: int


class Unsubscribed(NamedTuple):
    """The end of a back-end subscription."""

    broker: str
    filter: str


# The time at which a session is forgotten that never is.
NEVER_US: Final = 2**63 - 1


class SessionSaved(NamedTuple):
    """A whole session, in the home group of its client id. Replaces what was there.

    `uid` names it from clean start to clean start; `generation` grows with every take-over. While it is connected,
    `owner` is the broker that serves it, `connection` the number that `incarnation` of that broker gave the connection,
    and `expires_us` and `will_us` are 0. Else `owner` is "", `expires_us` the time to forget it (NEVER_US: never) and
    `will_us` the time at which its will is due (0: it has none, or none any more). `expiry_s`: how long it outlives its
    connection. `filters`, `will` (b"": none) and `place` (cursor, in flight, packet ids) are the broker's msgpack.
    `user` is whose it is ("": of somebody who has not logged in); left out on disk and on links where it is "".
    """

    client_id: str
    uid: bytes
    generation: int
    owner: str
    incarnation: int
    connection: int
    expiry_s: int
    expires_us: int
    will_us: int
    filters: bytes
    will: bytes
    place: bytes
    user: str = ""


class SessionMoved(NamedTuple):
    """The fields of a session that change often; b"" for a `place` that has not changed. Fields as in SessionSaved."""

    client_id: str
    generation: int
    owner: str
    incarnation: int
    connection: int
    expiry_s: int
    expires_us: int
    will_us: int
    place: bytes


class SessionEnded(NamedTuple):
    """A session is forgotten."""

    client_id: str
    uid: bytes
    generation: int


class Released(NamedTuple):
    """QoS 2 packet ids that their publisher released (PUBREL): the group may forget them. `generation`: of the session
    then; what an older one still brings is not placed (`cluster.repeats`). 0: from before it was recorded."""

    session_uid: bytes
    packet_ids: tuple[int, ...]
    generation: int = 0


class DictionaryStored(NamedTuple):
    """A dictionary that later records of this group refer to; kept as long as anything stored does."""

    dictionary: int
    family: str
    content: bytes


class ProducerSeen(NamedTuple):
    """The last sequence of a producer, restated (a joiner or an import starts from it)."""

    producer: bytes
    incarnation: int
    sequence: int


class Dropped(NamedTuple):
    """What stood here was superseded by later records, and retention took it."""


ControlRecord: TypeAlias = (
    EpochStart
    | Subscribed
    | Unsubscribed
    | SessionSaved
    | SessionMoved
    | SessionEnded
    | Released
    | DictionaryStored
    | ProducerSeen
    | Dropped
)

# Numbers on disk and on links: never given anew (4 was a session in one piece).
_TYPES: dict[int, type[ControlRecord]] = {
    1: EpochStart,
    2: Subscribed,
    3: Unsubscribed,
    5: SessionEnded,
    6: Released,
    7: DictionaryStored,
    8: ProducerSeen,
    9: SessionSaved,
    10: SessionMoved,
    11: Dropped,
}
_NUMBERS = {kind: number for number, kind in _TYPES.items()}

# The class of each field; of a tuple of numbers only that it is a tuple.
_KINDS: dict[type[ControlRecord], tuple[Any, ...]] = {
    kind: tuple(get_origin(hint) or hint for hint in get_type_hints(kind).values()) for kind in _NUMBERS
}


def pack_record(record: ControlRecord) -> bytes:
    """`record` as bytes."""
    fields: tuple[Any, ...] = record
    if isinstance(record, SessionSaved) and not record.user:
        fields = fields[:-1]  # as before there were users
    if isinstance(record, Released) and not record.generation:
        fields = fields[:-1]
    packed: bytes = msgpack.packb((_NUMBERS[type(record)], *fields))
    return packed


def unpack_record(data: bytes) -> ControlRecord:
    """Bytes back to a record. Raises PeerError when they are none, or of a type this version does not know."""
    try:
        fields: Any = msgpack.unpackb(data, use_list=False)
        record = _TYPES[fields[0]](*fields[1:])
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
        raise PeerError(f"a control record cannot be read: {error!r}") from None
    values: tuple[Any, ...] = record
    kinds = _KINDS[type(record)]
    if tuple not in kinds and tuple(map(type, values)) == kinds:
        return record
    for name, kind, value in zip(record._fields, kinds, values, strict=True):
        if type(value) is not kind or (kind is tuple and any(type(number) is not int for number in value)):
            raise PeerError(f"a control record cannot be read: {type(record).__name__}.{name} is no {kind.__name__}")
    return record
