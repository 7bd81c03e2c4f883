"""The messages on data links: between brokers and coordinators, Python clients and brokers, and coordinators.

Each message is one msgpack array `(KIND, ...)`; a link is a stream of them (`lexicast.actors.link.link`). Publications
travel as *entries* and blocks, columns for whole batches (`cluster.blocks`), never one message at a time.

    PUBLISH   tag, entries                client -> broker -> coordinator; an entry is (group, meta, lengths, body):
                                          a block that has no offsets yet. One ACK a PUBLISH; tags ascend
    ACK       tag, results                one result an entry, in order: runs of (count, epoch, first offset) once
                                          committed (QoS 0 entries: once stored or sequenced), or a refusal (text), or
                                          () where the group is led elsewhere: it is to be sent there. To a user's
                                          client also (count, text): so many of the entry are refused
    TAKEN     tag                         coordinator -> broker: the PUBLISH is sequenced; its ACK follows the commit
    DELIVER   stream, blocks              coordinator -> broker (stream 0) -> client (stream = its subscription);
                                          blocks as `Block.to_wire`, in offset order within a group
    HEADS     {group: (epoch, next)}      coordinator -> broker: every record before `next` that concerns this broker
                                          has been delivered on this link
    LEADS     {group: epoch}              coordinator -> broker: it serves these groups from now on; the broker asks
                                          `resume_groups`, before which nothing of them is delivered to it or taken
    DEAL      share, filter, rows         coordinator -> broker: records that members of a share are to have; they tell
                                          which they have done (`share_told`). A row is (block, [(member, numbers of its
                                          records in the block, ascending; None: all)])
    REQUEST   id, method, arguments       either direction; answered by one REPLY
    REPLY     id, error or None, result
    DICTIONARY  packed dictionary         broker -> client: a new dictionary of a family
    BEAT                                  either direction: nothing but that the sender lives (`heartbeat`)
    APPEND    [(group, epoch, previous,   leader -> follower: blocks (last offset, value as it is stored, CRC-32 of
               committed, blocks)]        that or None) that stand behind offset `previous`; below `committed` all is
                                          (`cluster.replication`)
    APPENDED  {group: (epoch, next)}      follower -> leader: everything before `next` is durable here
    REFUSED   {group: epoch}              follower -> leader: an APPEND was not taken; the epoch that was promised
    COLUMNS   tag, {index: parts}         broker -> coordinator, before PUBLISH `tag`: of some of its entries what
                                          conditions ask; a part is (version of the cells' map, its candidates, numbers
                                          of its records, rows): see `cluster.content.event_rows`
    ASK       id, version, time, rows     coordinator -> matcher: which brokers want which of these
    VERDICT   id, {broker: (incarnation,  matcher -> coordinator: of each broker whose conditions are all known, up to
               number, records)}          that number, a bit a record; of others nothing
    WANTS     version, number,            broker -> matcher: subscriptions with conditions that begin (True) and end;
               [(begins, filter, where)]  with these it has all that the map of that version puts there
    NAMES     {filter: names}             matcher -> broker: what conditions ask of these topics' publications
    ENTRY     on                          matcher -> broker, coordinator: whether it routes for them (`actors.matcher`)
    ROUTE     number, target, path, data  towards the matcher `target`, from hop to hop; each adds to `path` from whom
                                          it has it; `data`: a message, ASK or SEGMENT
    BACK      number, hops, path, data    along that path, to who has sent ROUTE `number`, which took so many hops
                                          between matchers; `data`: a message, VERDICT or SEGMENT, or b"": it was lost
    SEGMENT   incarnation, circuit,       in ROUTE and BACK: a piece of a circuit between a broker (of that incarnation)
              number, taken, message      and a matcher (`cluster.skipcloud.circuit`)
    CUT       incarnation, circuit        in ROUTE and BACK: that circuit has ended, or is not known
    CLOUD     act, level, version,        matcher -> matcher: the overlay's own messages (`cluster.skipcloud.wire`)
              [(name, age, addresses)]
    SPREAD    version, level, value       matcher -> matcher: what all are to have (`cluster.skipcloud.spreading`)
    CELLS     version, map                matcher -> broker: the map of cells, as the membership of that version has it
    PACKED    tag, entries                client -> broker: a PUBLISH whose entries' columns are compressed on this link
                                          (`compression.streams.batches`), to brokers that say they `unpack`

Handshake (before anything else), mutual, with the cluster's key, so that neither side serves a stranger:

    CHALLENGE nonce, cluster id, version  listener -> dialler; the same in all versions, so that each tells another one
    OFFER     {what: value}               listener -> dialler, in the same write: "public", where the link is encrypted,
                                          the listener's public key of it (`key_agreement`)
    HELLO     nonce, role, name,          dialler -> listener; "public" as in OFFER, and from here on all that either
              incarnation, {what: value}, sends is in sealed records (`sealed_records`)
              proof
    WELCOME   proof, info                 listener -> dialler

Names in OFFER and HELLO that are not known are passed over. Each proof covers all that was said before it, and what
stands beside it (`link_proofs`).

Users have no key. Their clients come to the ports of MQTT, say with a first byte (LINK_PREFACE) that they speak this
protocol, and log in; they speak first:

    LOGIN     version, client id, user    client -> broker; `secret`: a password or a token. None: nobody is said to be
              or None, secret or None     logged in
    WELCOME   nothing, info               broker -> client
    TURNED_AWAY  error                    broker -> client, "Class: message" as in a REPLY, instead of WELCOME or later;
                                          the link ends

What each carries, field by field, is in MESSAGES; what each request takes, in `cluster.protocol.requests`. Both are
looked at before anything else is done with a message (`cluster.protocol.shapes`).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgpack

from ..errors import PeerError
from .shapes import (
    GROUP,
    GROUP_MAX,
    OFFSET,
    WHOLE,
    Fields,
    any_value,
    check_fields,
    data,
    data_upto,
    each,
    either,
    fields_fit,
    mapping,
    name_text,
    nothing,
    row,
    topic_filter,
    truth,
    whole_number,
)

PROTOCOL_VERSION: Final = 5

# An entry of a PUBLISH: group, meta, lengths, body.
WireEntry: TypeAlias = tuple[int, bytes, bytes, bytes]

PUBLISH: Final = 1
ACK: Final = 2
DELIVER: Final = 3
HEADS: Final = 4
REQUEST: Final = 5
REPLY: Final = 6
DICTIONARY: Final = 7
TAKEN: Final = 8
BEAT: Final = 9
LEADS: Final = 10
APPEND: Final = 11
APPENDED: Final = 12
REFUSED: Final = 13
COLUMNS: Final = 14
ASK: Final = 15
CHALLENGE: Final = 16
HELLO: Final = 17
WELCOME: Final = 18
VERDICT: Final = 19
WANTS: Final = 20
NAMES: Final = 21
PACKED: Final = 22
DEAL: Final = 23
LOGIN: Final = 24
TURNED_AWAY: Final = 25
OFFER: Final = 26
ENTRY: Final = 32
ROUTE: Final = 33
BACK: Final = 34
SEGMENT: Final = 35
CUT: Final = 36
CLOUD: Final = 37
SPREAD: Final = 38
CELLS: Final = 39

# Hops between matchers, and both ends.
PATH_MAX: Final = 16

# The first byte of a link to a port of MQTT, whose own clients begin with CONNECT (0x10).
LINK_PREFACE: Final = b"\x00"
# A user's name and a password of MQTT: two bytes of length.
SECRET_BYTES_MAX: Final = 65_535

NONCE_BYTES: Final = 32


def unpacker(bytes_max: int, items_max: int) -> msgpack.Unpacker:
    """A parser of a link's bytes: messages of at most `bytes_max`, arrays and maps in them of at most `items_max`."""
    return msgpack.Unpacker(
        use_list=False,
        max_buffer_size=bytes_max,
        max_array_len=items_max,
        max_map_len=items_max,
        strict_map_key=False,
        read_size=min(bytes_max, 1 << 18),
    )


def _words(value: Any) -> bool:
    return type(value) is str


def _array(value: Any) -> bool:
    return type(value) is tuple


# These two are looked at for each entry: without the calls of shapes within shapes a tenth of the time.
def _entry(value: Any) -> bool:
    """(group, meta, lengths, body): columns that the sequencer looks into."""
    if type(value) is not tuple or len(value) != 4:
        return False
    group, meta, lengths, body = value
    return type(group) is int and 0 <= group <= GROUP_MAX and type(meta) is type(lengths) is type(body) is bytes


def _result(value: Any) -> bool:
    """Runs of (count, epoch, first offset) or (count, why they were refused), or why an entry was refused."""
    if type(value) is not tuple:
        return type(value) is str
    for run in value:
        if type(run) is not tuple or len(run) != 3:
            if _refused_run(run):
                continue
            return False
        count, epoch, first = run
        if not (type(count) is type(epoch) is type(first) is int and min(run) >= 0):
            return False
    return True


def _refused_run(run: Any) -> bool:
    return type(run) is tuple and len(run) == 2 and type(run[0]) is int and run[0] > 0 and type(run[1]) is str


def _stored(value: Any) -> bool:
    """(last offset, value of a block, its checksum or None): verified where it is taken."""
    if type(value) is not tuple or len(value) != 3 or not OFFSET(value[0]) or type(value[1]) is not bytes:
        return False
    return value[2] is None or OFFSET(value[2])


def _path(value: Any) -> bool:
    """The names of those who have passed something on."""
    return type(value) is tuple and len(value) <= PATH_MAX and all(map(name_text, value))


_append: Final = row(GROUP, WHOLE, whole_number(-1), OFFSET, each(_stored))

# Entries of a PUBLISH and blocks of a DELIVER are looked at one by one, so that one that is wrong costs itself.
MESSAGES: Final[dict[int, Fields]] = {
    PUBLISH: (WHOLE, _array),
    ACK: (WHOLE, each(_result)),
    TAKEN: (WHOLE,),
    DELIVER: (WHOLE, _array),
    HEADS: (mapping(GROUP, row(WHOLE, OFFSET)),),
    REQUEST: (WHOLE, name_text, _array),
    REPLY: (WHOLE, either(nothing, _words), any_value),
    DICTIONARY: (data,),
    BEAT: (),
    LEADS: (mapping(GROUP, WHOLE),),
    APPEND: (each(_append),),
    APPENDED: (mapping(GROUP, row(WHOLE, OFFSET)),),
    REFUSED: (mapping(GROUP, WHOLE),),
    COLUMNS: (WHOLE, mapping(WHOLE, each(row(WHOLE, each(name_text), data, data)))),
    ASK: (WHOLE, WHOLE, WHOLE, data),
    VERDICT: (WHOLE, mapping(name_text, row(WHOLE, WHOLE, data))),
    WANTS: (WHOLE, WHOLE, each(row(truth, topic_filter, name_text))),
    NAMES: (mapping(topic_filter, each(name_text)),),
    PACKED: (WHOLE, _array),
    DEAL: (name_text, topic_filter, _array),
    ENTRY: (truth,),
    ROUTE: (WHOLE, name_text, _path, data),
    BACK: (WHOLE, WHOLE, _path, data),
    SEGMENT: (WHOLE, WHOLE, WHOLE, WHOLE, data),
    CUT: (WHOLE, WHOLE),
    CLOUD: (WHOLE, WHOLE, whole_number(-1), each(row(name_text, WHOLE, each(name_text)))),
    SPREAD: (WHOLE, WHOLE, data),
    CELLS: (WHOLE, any_value),
    CHALLENGE: (data, name_text, WHOLE),
    OFFER: (mapping(name_text, any_value),),
    HELLO: (data, name_text, name_text, WHOLE, mapping(name_text, any_value), data),
    WELCOME: (data, mapping(name_text, any_value)),
    LOGIN: (WHOLE, name_text, either(nothing, name_text), either(nothing, data_upto(SECRET_BYTES_MAX))),
    TURNED_AWAY: (_words,),
}


def check_message(message: Any) -> None:
    """Raise PeerError unless `message` is one of the above, each field of its type."""
    kind = message[0] if type(message) is tuple and message else None
    shapes = MESSAGES.get(kind) if type(kind) is int else None
    if shapes is None:
        raise PeerError(f"not a message: {message!r:.80}")
    fields = message[1:]
    if not fields_fit(shapes, fields):
        check_fields(f"a message of kind {kind}", shapes, fields)


def pack_message(message: tuple[Any, ...]) -> bytes:
    """A message as data of another one."""
    found: bytes = msgpack.packb(message)
    return found


def unpack_message(data: bytes) -> tuple[Any, ...]:
    """The message that `pack_message` was given. Raises PeerError: it is none."""
    try:
        message = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(f"not a message: {error!r:.80}") from None
    check_message(message)
    found: tuple[Any, ...] = message
    return found


def check_entry_columns(entry: Any) -> None:
    """Raise PeerError unless an entry of a PUBLISH is a group and its three columns."""
    if not _entry(entry):
        raise PeerError(f"not an entry (group, meta, lengths, body): {entry!r:.80}")
