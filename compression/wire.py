"""Dictionaries on the wire: tags, aliases, bindings, and turning one encoding into another.

**The rules of a dictionary-aware session** (MQTT 5; Python clients on links use the same tags).

1. *Asking.* The client puts the user property `sdc` = `1` (USER_PROPERTY) into CONNECT. A broker that speaks this
   version echoes it in CONNACK. Only then is the session dictionary-aware, for this connection; else nothing below
   applies. A client that asked sends no PUBLISH before CONNACK (it would not know whether to tag it).
2. *Tags.* The payload of every application PUBLISH, both ways, starts with one tag byte: 0 (RAW) and the payload as it
   is; 1 (DEFLATE) and raw DEFLATE without dictionary; 2 to 254, an alias, and the payload compressed with the
   dictionary bound to it; on links with topic streams 224 to 255 are rule 9's. A zero-length payload (which clears a
   retained message) travels as the tag 0 alone. A PUBLISH with no byte at all is an error. Wills are raw and untagged.
   Payload Format Indicator and all other properties speak of the payload before encoding.
3. *Raw topics.* PUBLISHes on topics below `$sdc/` carry no tag.
4. *Bindings.* An alias is bound by a PUBLISH on `$sdc/alias` (ALIAS_TOPIC), QoS 0, payload one or more of: alias byte,
   dictionary id (8 bytes, big-endian). It holds from there on, in the order of the connection and of its sender's
   direction, until the connection ends or the alias is bound anew. Each direction has its own aliases.
5. *Broker to client.* Before the first payload that uses a dictionary on a connection the broker sends the dictionary,
   `Dictionary.pack()`, as PUBLISH on `dictionary_topic(family)` with RETAIN set, then its binding.
   `Introductions` says what a connection still lacks.
6. *Client to broker.* The broker pushes the newest dictionary of a family (form of rule 5, no binding) when what
   the connection has carried says that it pays (`link_dictionaries`). To use it the client binds an alias of its
   own; one that it has from an earlier connection it may bind at once, and is not sent it again in either direction. A
   broker that is bound an id it does not know (it was restarted) fetches it before it takes anything further
   from that connection; a payload that needs one that nobody has is malformed: DISCONNECT 0x99.
7. *Opted-out topics* (`opted_out_topics`): CONNACK names their filters; their payloads go raw, tagged 0, both ways.
8. *Missing dictionaries* are fetched by subscribing to `dictionary_topic(family)`: they are retained there.
9. *Topic streams.* A client that can read them adds the user property `sdc-streams` = `2` (STREAMS_PROPERTY) to
   CONNECT; a broker that sends them echoes it in CONNACK. Then the broker may send payloads of QoS 0 and 1 as frames of
   the topic's stream (`streams.frames`), whose first byte is their tag, 224 to 255, and no alias; before a key frame
   that begins with a dictionary it sends that (form of rule 5, no binding). All frames of a topic since a key frame
   arrive on the connection in order, whatever standalone payloads stand between them. A client that cannot read a
   frame says so by a PUBLISH of the topic's name on `$sdc/streams` (LOST_TOPIC), QoS 0, and gets standalone payloads
   until the next key frame; a broker does not go on by itself with one. (Of other values the property
   is not known: 1 was another form of frames.)
10. *A link's own past.* A client that can compress against what it has published on the connection adds the user
   property `sdc-history` = `1` (HISTORY_PROPERTY); a broker that reads that echoes it in CONNACK. Then the client may
   send payloads of any QoS as HISTORY_TAG and a frame (`link_history`). The past is all such payloads of the connection
   in the order in which they were written to it, whatever their topics; sent again on a later connection they are
   encoded anew. Frames that do not follow are malformed: DISCONNECT 0x99.

11. *Field models.* A client that can read dictionaries of the codec `fields-1`, and topic streams that begin with one,
   adds the user property `sdc-fields` = `1` (FIELDS_PROPERTY) to CONNECT. Without it the broker sends it neither, but
   an older dictionary's form of the payload, or one without.

12. *Batches.* A client that sends several publications of a topic as one adds the user property `sdc-batches` = `1`
   (BATCHES_PROPERTY) to CONNECT; a broker that takes them apart echoes it in CONNACK. Then the client may send
   PUBLISHes of QoS 0 without properties whose payload is BATCH_TAG and a batch (`streams.batches`), and binds no alias
   above LAST_BATCHING_ALIAS. Its messages count as if each had come in a PUBLISH of its own, with its QoS and packet
   id. One that is none, or longer than a payload may be, is malformed: DISCONNECT 0x99.

13. *Streams of zstd.* A client that can read topic streams of zstd (`streams.zstd_blocks`) adds the user property
   `sdc-zstd` = `1` (ZSTD_PROPERTY) to CONNECT, beside that of rule 9. Without it the broker sends it none of their
   frames.

**What must hold for an alias to be bound anew.** Whatever is tagged with it was written to the connection before the
new binding is. So encode for a connection and write in the same step; never keep tagged bytes for retransmission:
keep (encoding, dictionary id, data) and tag again. `AliasTable.alias_for` never takes an alias that was used in the
current turn, so all payloads of a batch can be tagged before the first is written.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.topics.names import DICTIONARY_PREFIX

from .codecs import PAYLOAD_BYTES_MAX, Codec, Deflate
from .dictionary import Dictionary
from .opening import AT_ONCE_BYTES_MAX, NoRoomError, Room
from .streams.frames import FIRST_FRAME_TAG

USER_PROPERTY: Final = ("sdc", "1")
ALIAS_TOPIC: Final = DICTIONARY_PREFIX + b"alias"
LOST_TOPIC: Final = DICTIONARY_PREFIX + b"streams"

FIRST_ALIAS: Final = FIRST_DICTIONARY
LAST_ALIAS: Final = 254
LAST_BROKER_ALIAS: Final = FIRST_FRAME_TAG - 1
"""Of a broker's aliases, which are the same on all connections: the tags above are frames of topic streams."""

STREAMS_PROPERTY: Final = ("sdc-streams", "2")
STREAMS_VERSION: Final = 2
"""The same on the links of Python clients."""

HISTORY_TAG: Final = 255
"""Client to broker: a frame of the link's own past."""

HISTORY_PROPERTY: Final = ("sdc-history", "1")

FIELDS_PROPERTY: Final = ("sdc-fields", "1")

ZSTD_PROPERTY: Final = ("sdc-zstd", "1")
ZSTD_VERSION: Final = 1
"""The same on the links of Python clients."""

BATCHES_PROPERTY: Final = ("sdc-batches", "1")

_BINDING: Final = struct.Struct(">BQ")


class Binding(NamedTuple):
    """An alias bound to a dictionary; `version` grows with every binding of its table."""

    version: int
    alias: int
    dictionary: int

    def pack(self) -> bytes:
        """The payload for ALIAS_TOPIC."""
        return _BINDING.pack(self.alias, self.dictionary)


class AliasTable:
    """The sender's side: one table for all connections of a broker, so that one encoding serves all of them.

    253 aliases; when all are taken the least recently used is bound anew. A connection needs to know only the
    bindings of the aliases it is sent: see `Introductions`.
    """

    def __init__(self, last_alias: int = LAST_ALIAS) -> None:
        if not FIRST_ALIAS <= last_alias <= LAST_ALIAS:
            raise ValueError(f"aliases lie in {FIRST_ALIAS}..{LAST_ALIAS}, not {last_alias}")
        self.version = 0
        self._free = list(range(last_alias, FIRST_ALIAS - 1, -1))
        self._aliases: OrderedDict[int, int] = OrderedDict()  # dictionary id -> alias, least recently used first
        self._log: OrderedDict[int, Binding] = OrderedDict()  # alias -> its current binding, oldest binding first
        self._turn = 0
        self._used: dict[int, int] = {}  # alias -> turn of its last use

    def next_turn(self) -> None:
        """Everything tagged so far has been written: aliases used until now may be bound anew."""
        self._turn += 1

    def alias_for(self, dictionary: int) -> int:
        """The alias of a dictionary id, bound now if need be; RAW when all aliases are in use in this turn."""
        alias = self._aliases.get(dictionary)
        if alias is None:
            alias = self._take()
            if alias == RAW:
                return RAW
            self.version += 1
            self._log[alias] = Binding(self.version, alias, dictionary)
            self._log.move_to_end(alias)
            self._aliases[dictionary] = alias
        self._aliases.move_to_end(dictionary)
        self._used[alias] = self._turn
        return alias

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        dictionary, alias = next(iter(self._aliases.items()))
        if self._used[alias] == self._turn:
            return RAW
        del self._aliases[dictionary]
        return alias

    def binding(self, alias: int) -> Binding:
        """The current binding of an alias. Raises DictionaryError when it has none."""
        try:
            return self._log[alias]
        except KeyError:
            raise DictionaryError(f"alias {alias} is not bound") from None

    def since(self, version: int) -> tuple[Binding, ...]:
        """The current bindings newer than `version`, oldest first: at most one an alias."""
        newer = []
        for binding in reversed(self._log.values()):
            if binding.version <= version:
                break
            newer.append(binding)
        return tuple(reversed(newer))


class Introductions:
    """What one connection has been told: which bindings of an AliasTable, and which dictionaries.

    Costs memory only for the aliases that the connection is sent. Forget it with the connection.
    """

    __slots__ = ("_dictionaries", "_last", "_versions")

    DICTIONARIES_MAX: Final = 256

    def __init__(self) -> None:
        # What was told last, and the table's version then: mostly the same comes again.
        self._last: tuple[int, frozenset[int]] = (-1, frozenset())
        self._versions: dict[int, int] = {}
        self._dictionaries: OrderedDict[int, None] = OrderedDict()

    def lacking(self, table: AliasTable, aliases: frozenset[int]) -> list[Binding]:
        """The bindings to send before payloads tagged with `aliases`, in their order; marks them as sent.

        Tags below FIRST_ALIAS need none. Raises DictionaryError when an alias is not bound.
        """
        lacking: list[Binding] = []
        last = table.version, aliases
        if last == self._last:
            return lacking
        for alias in sorted(aliases):
            if alias < FIRST_ALIAS:
                continue
            binding = table.binding(alias)
            if self._versions.get(alias) != binding.version:
                self._versions[alias] = binding.version
                lacking.append(binding)
        self._last = last
        return lacking

    def knows(self, dictionary: int) -> bool:
        """Whether the dictionary itself was sent, or the receiver has said that it has it."""
        return dictionary in self._dictionaries

    def needs_dictionary(self, dictionary: int) -> bool:
        """Whether the dictionary itself has to be sent first; marks it as sent. Receivers keep as many at least."""
        known = dictionary in self._dictionaries
        self._dictionaries[dictionary] = None
        self._dictionaries.move_to_end(dictionary)
        if len(self._dictionaries) > self.DICTIONARIES_MAX:
            self._dictionaries.popitem(last=False)
        return not known


class Bindings:
    """The receiver's side, one a connection and direction: at most 254 bindings."""

    __slots__ = ("_dictionaries",)

    def __init__(self) -> None:
        self._dictionaries: dict[int, int] = {}

    def bind(self, payload: bytes) -> list[int]:
        """Apply a payload of ALIAS_TOPIC; the ids it names. Raises DictionaryError, nothing applied, if malformed."""
        if not payload or len(payload) % _BINDING.size:
            raise DictionaryError(f"a binding has {_BINDING.size} bytes each, not {len(payload)}")
        bound = list(_BINDING.iter_unpack(payload))
        for alias, dictionary in bound:
            if alias < FIRST_ALIAS or dictionary < FIRST_DICTIONARY:
                raise DictionaryError(f"alias {alias} cannot be bound to dictionary {dictionary:016x}")
        self._dictionaries.update(bound)
        return [dictionary for _, dictionary in bound]

    def dictionary_id(self, alias: int) -> int:
        """The id bound to `alias`. Raises DictionaryError when nothing is."""
        try:
            return self._dictionaries[alias]
        except KeyError:
            raise DictionaryError(f"a payload is tagged with alias {alias}, to which no dictionary is bound") from None


def split_tag(payload: bytes) -> tuple[int, bytes]:
    """(tag, data) of a tagged payload. Raises DictionaryError when it is empty."""
    if not payload:
        raise DictionaryError("a payload without tag byte on a dictionary-aware connection")
    return payload[0], payload[1:]


STREAMED_FRAME: Final = 255


class Encoded(NamedTuple):
    """A payload as stored: `encoding` is RAW, DEFLATE or FIRST_DICTIONARY, the last with its dictionary's id.

    On the way to a client also STREAMED_FRAME: a frame, with the id of the dictionary that it begins with, if it does.
    """

    encoding: int
    dictionary: int | None
    data: bytes


_PLAIN_DEFLATE_LABEL: Final = "no family, DEFLATE without dictionary"


class Recoder:
    """Holds dictionaries by id and converts payloads between what is stored, what is tagged and what is raw.

    Bounded: at most `dictionaries_max` dictionaries of together `bytes_max` content bytes, and `coders_max` codecs at
    work (up to 300 KiB each), the least recently used out first. No payload becomes longer than `payload_bytes_max`.
    """

    def __init__(
        self,
        *,
        dictionaries_max: int = 4_096,
        bytes_max: int = 64 << 20,
        coders_max: int = 128,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self._dictionaries_max = dictionaries_max
        self._bytes_max = bytes_max
        self._coders_max = coders_max
        self.payload_bytes_max = payload_bytes_max
        self._dictionaries: OrderedDict[int, Dictionary] = OrderedDict()
        self._bytes = 0
        self._coders: OrderedDict[int, Codec] = OrderedDict()
        self._deflate = Deflate(_PLAIN_DEFLATE_LABEL)

    def add(self, dictionary: Dictionary) -> None:
        """Hold `dictionary`; the one last added is always held, whatever the limits."""
        held = self._dictionaries.pop(dictionary.id, None)
        self._bytes += len(dictionary.content) - (len(held.content) if held else 0)
        self._dictionaries[dictionary.id] = dictionary
        while len(self._dictionaries) > 1 and (
            len(self._dictionaries) > self._dictionaries_max or self._bytes > self._bytes_max
        ):
            id, gone = self._dictionaries.popitem(last=False)
            self._bytes -= len(gone.content)
            self._coders.pop(id, None)

    def get(self, dictionary: int) -> Dictionary | None:
        """The dictionary with this id, if held."""
        return self._dictionaries.get(dictionary)

    def __contains__(self, dictionary: object) -> bool:
        return dictionary in self._dictionaries

    def room(self, bytes_max: int = AT_ONCE_BYTES_MAX) -> Room:
        """Room for the payloads of what came at once; one payload always fits in."""
        return Room(max(bytes_max, self.payload_bytes_max))

    def to_raw(self, encoding: int, dictionary: int | None, data: bytes, room: Room | None = None) -> bytes:
        """The payload of a stored encoding. Raises DictionaryError: dictionary not held, data not decompressable, or no
        `room` left for what it becomes."""
        if encoding == RAW:
            return data
        decompress = self._decoder(encoding, dictionary).decompress
        if room is None:
            return decompress(data, bytes_max=self.payload_bytes_max)
        limit = room.limit(self.payload_bytes_max)
        try:
            payload = decompress(data, bytes_max=limit)
        except DictionaryError:
            room.failed(len(data), limit, self.payload_bytes_max)
            raise
        room.take(len(payload))
        return payload

    def all_to_raw(
        self, encoding: int, dictionary: int | None, payloads: list[bytes], room: Room | None = None
    ) -> list[bytes]:
        """`to_raw` of a run of payloads that share their encoding. `room`: for all of them, untouched where one fails;
        None: a new one."""
        if encoding == RAW:
            return payloads
        decompress, limit = self._decoder(encoding, dictionary).decompress, self.payload_bytes_max
        room = room or self.room()
        left = room.left_bytes
        raw: list[bytes] = []
        for data in payloads:
            if left < limit:
                raise NoRoomError("there may be no room for all of them")
            payload = decompress(data, bytes_max=limit)
            left -= len(payload)
            raw.append(payload)
        room.left_bytes = left
        return raw

    def each_to_raw(
        self, encoding: int, dictionary: int | None, payloads: Iterable[bytes], room: Room | None = None
    ) -> Iterator[bytes | DictionaryError]:
        """`to_raw` of each payload of a run in which some are damaged: these give their errors. `room`: for all of
        them; None: a new one."""
        room = room or self.room()
        for data in payloads:
            try:
                yield self.to_raw(encoding, dictionary, data, room)
            except DictionaryError as error:
                yield error

    def encode(self, payload: bytes, dictionary: Dictionary | None = None) -> Encoded:
        """The shortest form of a raw payload: with `dictionary` (held from now on) or DEFLATE without, else raw."""
        if not payload:
            return Encoded(RAW, None, payload)
        if dictionary is None:
            kind, data = self._deflate.encode(payload)
            return Encoded(kind, None, data)
        if dictionary.id not in self._dictionaries:
            self.add(dictionary)
        kind, data = self._coder(dictionary.id).encode(payload)
        return Encoded(kind, dictionary.id if kind >= FIRST_DICTIONARY else None, data)

    def encode_all(self, payloads: list[bytes], dictionary: Dictionary) -> list[bytes]:
        """Raw payloads compressed with `dictionary` (held from now on), shorter or not. Raises DictionaryError."""
        if dictionary.id not in self._dictionaries:
            self.add(dictionary)
        return list(map(self._coder(dictionary.id).compress, payloads))

    def to_aware(self, encoding: int, dictionary: int | None, data: bytes, aliases: AliasTable) -> tuple[int, bytes]:
        """(tag, data) of a stored encoding, passed through untouched; decompressed only when no alias can be had.

        Raises DictionaryError in that case as `to_raw`, and when an encoding that needs a dictionary names none.
        """
        if encoding < FIRST_DICTIONARY:
            return encoding, data
        tag = aliases.alias_for(_named(dictionary))
        return (tag, data) if tag != RAW else (RAW, self.to_raw(encoding, dictionary, data))

    def from_aware(self, payload: bytes, bindings: Bindings, *, held: bool = True) -> Encoded:
        """A tagged payload as it is stored, untouched.

        Raises DictionaryError: no tag, alias unbound, or (unless `held` is False) the dictionary not held.
        """
        tag, data = split_tag(payload)
        if tag < FIRST_ALIAS:
            return Encoded(tag, None, data)
        dictionary = bindings.dictionary_id(tag)
        if held and dictionary not in self._dictionaries:
            raise self._missing(dictionary)
        return Encoded(FIRST_DICTIONARY, dictionary, data)

    def _decoder(self, encoding: int, dictionary: int | None) -> Codec:
        return self._deflate if encoding == DEFLATE else self._coder(_named(dictionary))

    def _coder(self, id: int) -> Codec:
        coder = self._coders.get(id)
        if coder is None:
            dictionary = self._dictionaries.get(id)
            if dictionary is None:
                raise self._missing(id)
            coder = self._coders[id] = dictionary.build()
            if len(self._coders) > self._coders_max:
                self._coders.popitem(last=False)
        self._coders.move_to_end(id)
        self._dictionaries.move_to_end(id)
        return coder

    @staticmethod
    def _missing(id: int) -> DictionaryError:
        return DictionaryError(f"dictionary {id:016x} (family unknown) is not held: fetch it from its $sdc/ topic")


def _named(dictionary: int | None) -> int:
    if dictionary is None:
        raise DictionaryError("a payload compressed with a dictionary does not name it")
    return dictionary
