"""The client's side of a dictionary-aware connection, as a pure state machine (the rules: `compression.wire`).

    connected(aware, opted_out, streams, history)  a connection was accepted; `aware`: its CONNACK echoed `sdc`
    held()                                -> bindings to send first on that connection
    outgoing(topic, payload, now)         -> bindings to send first, and the payload to send
    incoming(item, ...)                   -> steps
    tick(now)                             -> steps; call it once a second or so

Steps, to be performed in order: `Deliver` an item with its raw payload to the program, `Fetch` or `Release` a
dictionary's topic (subscribe, unsubscribe), `Fail` an item with the error to report, tell that a stream is `Lost`.
Messages that need a dictionary which is not held wait, and all later ones behind them, so the order stays; when the
dictionary has not come after `fetch_s`, or too many wait, the message that needs it fails and the others go on. Nothing
is ever delivered that was not decompressed with exactly the dictionary that its sender named.

What is learned (dictionaries, families) outlives the connection; aliases, bindings and topic streams do not. Frames of
a stream are read in the order in which they came, so they wait like any other; one that was given up is a hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from lexicast.cluster.blocks import RAW
from lexicast.cluster.errors import DictionaryError, TopicError
from lexicast.cluster.topics.names import DICTIONARY_PREFIX, dictionary_topic, unescape_family

from .accounting import TrafficCounters
from .batches import AS_ONE, AS_STREAM, BATCH_TAG, LAST_BATCHING_ALIAS, Batched, as_stream, join_batch
from .codecs import PAYLOAD_BYTES_MAX
from .dictionary import shown, unpack_dictionary
from .families import Families, FamilyMap
from .link_history import HistoryWriter
from .opted_out_topics import OptedOut
from .streams.frames import fields_codec, is_frame, key_frame_dictionary
from .streams.readers import StreamReaders
from .wire import ALIAS_TOPIC, HISTORY_TAG, LAST_ALIAS, STREAMED_FRAME, AliasTable, Bindings, Encoded, Recoder

Item = TypeVar("Item")

WAITING_MAX: Final = 1_000
WAITING_BYTES_MAX: Final = 16 << 20
FETCH_S: Final = 10.0
# Dictionaries that a client says it has when it connects again: those announced last. A broker fetches as many at once.
SAID_MAX: Final = 8

_RAW_TAG: Final = bytes((RAW,))
_HISTORY: Final = bytes((HISTORY_TAG,))


class Deliver(NamedTuple, Generic[Item]):
    """Hand the item to the program, with this payload."""

    item: Item
    payload: bytes


class Fail(NamedTuple, Generic[Item]):
    """Report the error; `item` is the message that is lost by it, None for dictionaries and bindings."""

    item: Item | None
    error: DictionaryError


class Fetch(NamedTuple):
    """Subscribe to this dictionary topic."""

    topic: bytes


class Release(NamedTuple):
    """Unsubscribe from a topic that was fetched."""

    topic: bytes


class Lost(NamedTuple):
    """PUBLISH this topic's name on LOST_TOPIC (QoS 0): its stream cannot be read any further."""

    topic: bytes


Step: TypeAlias = Deliver[Item] | Fail[Item] | Fetch | Release | Lost


class Outgoing(NamedTuple):
    """PUBLISH each binding on ALIAS_TOPIC (QoS 0), then the payload."""

    bindings: tuple[bytes, ...]
    payload: bytes


class _Waiting(NamedTuple, Generic[Item]):
    item: Item
    topic: bytes
    encoded: Encoded
    until: float
    # of the connection on which it came
    streams: StreamReaders | None


class ClientSession(Generic[Item]):
    """One client's dictionaries, and the aliases of its present connection. Not for two threads at once."""

    def __init__(
        self,
        *,
        waiting_max: int = WAITING_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        fetch_s: float = FETCH_S,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self.aware = False
        self._batches = False
        self._streams: StreamReaders | None = None
        self._history: HistoryWriter | None = None
        self.sent = TrafficCounters()
        self.received = TrafficCounters()
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._fetch_s = fetch_s
        self._payload_bytes_max = payload_bytes_max
        self._recoder = Recoder(dictionaries_max=1_024, coders_max=64, payload_bytes_max=payload_bytes_max)
        self._map = FamilyMap()
        self._rules = Families()
        self._aliases = AliasTable()
        self._bindings = Bindings()
        self._opted_out = OptedOut()
        self._introduced = 0
        self._waiting: deque[_Waiting[Item]] = deque()
        self._waiting_bytes = 0
        self._fetched: dict[bytes, None] = {}

    @property
    def waiting(self) -> int:
        """Messages that wait for a dictionary, or behind one that does."""
        return len(self._waiting)

    def connected(
        self,
        aware: bool,
        opted_out: Iterable[bytes] = (),
        streams: bool = False,
        history: bool = False,
        batches: bool = False,
    ) -> list[Step[Item]]:
        """A new connection begins. What still waits is fetched again. `opted_out`: filters of topics that the broker
        wants nobody to compress; `streams`: it may send topic streams; `history`: it reads frames of the link's own
        past; `batches`: it takes batches apart. Raises TopicError when a filter is none."""
        self.aware = aware
        self._batches = aware and batches
        self._history = HistoryWriter() if aware and history else None
        self._streams = StreamReaders(self._recoder.get, self._payload_bytes_max) if aware and streams else None
        self._opted_out = OptedOut(opted_out)
        self._aliases = AliasTable(LAST_BATCHING_ALIAS if self._batches else LAST_ALIAS)
        self._bindings = Bindings()
        self._introduced = 0
        fetched, self._fetched = list(self._fetched), {}
        if not aware:
            return [*self._give_up("the broker no longer speaks sdc")]
        self._fetched = dict.fromkeys(fetched)
        return [Fetch(topic) for topic in fetched]

    def held(self) -> tuple[bytes, ...]:
        """Bindings of the dictionaries that it has from earlier connections, to be sent first on a new one: so they are
        not sent again, and both directions go on with them at once."""
        if not self.aware:
            return ()
        self._aliases.next_turn()
        bindings = []
        for dictionary in self._map.dictionaries()[-SAID_MAX:]:
            bindings.append(self._aliases.binding(self._aliases.alias_for(dictionary.id)).pack())
            self.sent.add_dictionary(dictionary.family, len(bindings[-1]))
        self._introduced = self._aliases.version
        return tuple(bindings)

    def outgoing(self, topic: bytes, payload: bytes, now_us: int) -> Outgoing:
        """How to send `payload` (to be written at once, in order); untouched on a plain connection and below `$sdc/`.

        The newest unexpired dictionary of the topic's family; without one the link's own past, or DEFLATE; or raw,
        where that is shortest.
        """
        if not self.aware or topic.startswith(DICTIONARY_PREFIX):
            return Outgoing((), payload)
        if self._opted_out(topic):
            return Outgoing((), _RAW_TAG + payload)
        dictionary = self._map.dictionary_for(topic, now_us)
        if dictionary is None and self._history is not None:
            return Outgoing((), self._against_past(topic, payload, self._history))
        encoded = self._recoder.encode(payload, dictionary)
        self._aliases.next_turn()
        tag, data = self._recoder.to_aware(*encoded, self._aliases)
        family = self._family(topic, encoded)
        self.sent.add(family, len(payload), 1 + len(data))
        return Outgoing(self._introductions(family), bytes((tag,)) + data)

    def batches(self, topic: bytes) -> bool:
        """Whether messages of the topic may be sent as batches."""
        return self._batches and not topic.startswith(DICTIONARY_PREFIX) and not self._opted_out(topic)

    def outgoing_batch(self, topic: bytes, messages: Sequence[Batched], now_us: int) -> Outgoing:
        """How to send them as one, of a topic for which `batches` holds: with the topic's dictionary, or as frames of a
        stream where that is a field model and it is shorter."""
        content = join_batch(messages)
        dictionary = self._map.dictionary_for(topic, now_us)
        codec = fields_codec(dictionary)
        if dictionary is None or codec is None:
            return self._as_one(self.outgoing(topic, content, now_us))
        framed = join_batch(as_stream(messages, codec))
        if len(framed) >= len(self._recoder.encode(content, dictionary).data):
            return self._as_one(self.outgoing(topic, content, now_us))
        self._recoder.add(dictionary)
        self._aliases.next_turn()
        alias = self._aliases.alias_for(dictionary.id)
        payload = bytes((BATCH_TAG, AS_STREAM, alias)) + framed
        self.sent.add(dictionary.family, len(content), len(payload))
        return Outgoing(self._introductions(dictionary.family), payload)

    @staticmethod
    def _as_one(outgoing: Outgoing) -> Outgoing:
        return outgoing._replace(payload=bytes((BATCH_TAG, AS_ONE)) + outgoing.payload)

    def _introductions(self, family: bytes | None) -> tuple[bytes, ...]:
        """The bindings to be sent before what has been encoded since the last time."""
        fresh = self._aliases.since(self._introduced)
        self._introduced = self._aliases.version
        bindings = tuple([binding.pack() for binding in fresh])
        for binding in bindings:
            self.sent.add_dictionary(family, len(binding))
        return bindings

    def _against_past(self, topic: bytes, payload: bytes, history: HistoryWriter) -> bytes:
        frame = history.frame(payload)
        if frame is None:
            encoding, _, data = self._recoder.encode(payload)
            sent = bytes((encoding,)) + data
        else:
            sent = _HISTORY + frame
        self.sent.add(self._family(topic, Encoded(RAW, None, b"")), len(payload), len(sent))
        return sent

    def incoming(self, item: Item, topic: bytes, payload: bytes, now_s: float) -> list[Step[Item]]:
        """A PUBLISH arrived. `now_s` is monotonic."""
        if not self.aware:
            return [Deliver(item, payload)]
        if topic.startswith(DICTIONARY_PREFIX):
            return self._control(topic, payload)
        try:
            encoded = self._taken(payload)
        except DictionaryError as error:
            return [Fail(item, error)]
        if not self._waiting and self._held(encoded):
            return [self._deliver(_Waiting(item, topic, encoded, now_s, self._streams)), *self._lost()]
        self._waiting.append(_Waiting(item, topic, encoded, now_s + self._fetch_s, self._streams))
        self._waiting_bytes += len(encoded.data)
        steps: list[Step[Item]] = [*self._fetches(topic, encoded)]
        steps += self._drain()  # what there was no room for before
        while len(self._waiting) > self._waiting_max or self._waiting_bytes > self._waiting_bytes_max:
            steps += [self._give_first("too many messages wait for it"), *self._drain()]
        return steps

    def _taken(self, payload: bytes) -> Encoded:
        if self._streams is not None and is_frame(payload):
            return Encoded(STREAMED_FRAME, key_frame_dictionary(payload), payload)
        return self._recoder.from_aware(payload, self._bindings, held=False)

    def tick(self, now_s: float) -> list[Step[Item]]:
        """Let time pass: messages whose dictionary did not come in time fail."""
        steps = self._drain()
        while self._waiting and self._waiting[0].until <= now_s:
            steps += [self._give_first(f"it did not come within {self._fetch_s:g} s"), *self._drain()]
        return steps

    def _control(self, topic: bytes, payload: bytes) -> list[Step[Item]]:
        try:
            if topic == ALIAS_TOPIC:
                self._bindings.bind(payload)
                self.received.add_dictionary(None, len(payload))
                return []
            if not payload:  # a retained dictionary was cleared
                return []
            self._learn(topic, payload)
        except DictionaryError as error:
            return [Fail(None, error)]
        return self._drain()

    def _learn(self, topic: bytes, packed: bytes) -> None:
        dictionary = unpack_dictionary(packed)
        try:
            family = unescape_family(topic[len(DICTIONARY_PREFIX) :])
        except TopicError as error:
            raise DictionaryError(f"{dictionary.label} came on a topic of no family: {error}") from None
        if family != dictionary.family:
            raise DictionaryError(f"{dictionary.label} came on the topic of family {shown(family)}")
        self.received.add_dictionary(family, len(packed))
        self._recoder.add(dictionary)
        self._map.add(dictionary)

    def _drain(self) -> list[Step[Item]]:
        """Deliver what can be delivered, in order, as much as there is room for at once."""
        steps: list[Step[Item]] = []
        room = self._recoder.room()
        while self._waiting and room.left_bytes > 0 and self._held(self._waiting[0].encoded):
            step = self._deliver(self._pop())
            if isinstance(step, Deliver):
                room.take(len(step.payload))
            steps.append(step)
        steps += self._lost()
        if not self._waiting:
            steps += [Release(topic) for topic in self._fetched]
            self._fetched.clear()
        return steps

    def _deliver(self, waiting: _Waiting[Item]) -> Deliver[Item] | Fail[Item]:
        item, topic, encoded, _, streams = waiting
        sent_bytes = len(encoded.data)
        try:
            if encoded.encoding == STREAMED_FRAME and streams is not None:
                payload = streams.decode(topic, encoded.data)
            else:
                sent_bytes += 1
                payload = self._recoder.to_raw(*encoded)
        except DictionaryError as error:
            return Fail(item, error)
        self.received.add(self._family(topic, encoded), len(payload), sent_bytes)
        return Deliver(item, payload)

    def _lost(self) -> list[Lost]:
        """What the present connection's broker has to be told."""
        if self._streams is None or not self._streams.lost:
            return []
        lost, self._streams.lost = self._streams.lost, []
        return [Lost(topic) for topic in lost]

    def _fetches(self, topic: bytes, encoded: Encoded) -> list[Fetch]:
        """The dictionary topics on which the missing dictionary may be: its family is known only by guess."""
        if self._held(encoded):
            return []
        families = dict.fromkeys(self._map.families_of(topic))
        ruled = self._rules.family_of(topic)
        if ruled is not None:
            families[ruled] = None
        topics = [dictionary_topic(family) for family in families]
        fresh = [topic for topic in topics if topic not in self._fetched]
        self._fetched.update(dict.fromkeys(fresh))
        return [Fetch(topic) for topic in fresh]

    def _fail_first(self, reason: str) -> Fail[Item]:
        first = self._pop()
        family = shown(self._family(first.topic, first.encoded) or first.topic)
        label = f"family {family}, dictionary {first.encoded.dictionary or 0:016x}"
        return Fail(first.item, DictionaryError(f"{label}: a message needs it and {reason}"))

    def _give_first(self, reason: str) -> Fail[Item] | Deliver[Item]:
        """The first one that waits: delivered if it can be, else failed."""
        return self._deliver(self._pop()) if self._held(self._waiting[0].encoded) else self._fail_first(reason)

    def _give_up(self, reason: str) -> list[Fail[Item] | Deliver[Item]]:
        return [self._give_first(reason) for _ in range(len(self._waiting))]

    def _pop(self) -> _Waiting[Item]:
        first = self._waiting.popleft()
        self._waiting_bytes -= len(first.encoded.data)
        return first

    def _held(self, encoded: Encoded) -> bool:
        return encoded.dictionary is None or encoded.dictionary in self._recoder

    def _family(self, topic: bytes, encoded: Encoded) -> bytes | None:
        """For counting and messages: the dictionary's family, else the announced one, else by rule."""
        dictionary = self._recoder.get(encoded.dictionary) if encoded.dictionary is not None else None
        if dictionary is not None:
            return dictionary.family
        return self._map.family_of(topic) or self._rules.family_of(topic)
