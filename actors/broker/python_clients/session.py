"""The session of one Python client on its link: what it publishes, and its requests.

A client's entries go to the coordinators unchanged (it is its own producer). What is spoken is in
`cluster.protocol.messages`; how a client behaves, in `client.client`.

Dictionaries: a client whose first message asks for it (`link_dictionaries`) gets each when it pays on its link
(`dictionaries.link_choice`). Every other one, also one of an older release, is told of all that there are, before its
first message is answered, and of new ones as they come.

A client that has logged in as a user (`user_port`) has that user's rights, and asks for what clients ask for alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lexicast.cluster.blocks import FIRST_DICTIONARY, Meta, unpack_meta
from lexicast.cluster.errors import DictionaryError, LexicastError, NotAuthorizedError, PeerError, UsageError
from lexicast.cluster.protocol.messages import ACK, DICTIONARY, PACKED, PUBLISH, REQUEST, WireEntry
from lexicast.cluster.protocol.requests import CLIENT, LINK_DICTIONARIES
from lexicast.cluster.protocol.shapes import check_request
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import NONE

from ...link.link import Link
from ...tracing.broker_traces import BrokerTraces
from ..dictionaries.link_choice import ConnectionDictionaries
from ..engine import BrokerEngine
from ..pipelines.entries import Done, SealedEntry
from .entry_checks import EntryChecks
from .group_streams import GroupStreams
from .past_requests import PastRequests
from .request_line import RequestLine
from .streams import ClientStreams
from .user_entries import UserEntries, results_with, without
from .user_rights import UserRights

# Dictionaries that a client may say it has already.
HELD_MAX: Final = 256

Answers = Mapping[str, Callable[..., Awaitable[Any]]]


class PythonClientSession:
    """See the module's docstring."""

    def __init__(
        self,
        engine: BrokerEngine,
        link: Link,
        checks: EntryChecks,
        answers: Answers,
        closed: Callable[[PythonClientSession], None],
        user: UserRights | None = None,
    ) -> None:
        """`answers`: to requests that do not concern this client alone, by method name; `closed` is told at the end;
        `user`: None where the client holds the cluster's key."""
        self._coordinators = engine.coordinators
        self._dictionaries = engine.dictionaries
        self._fetching = engine.dictionary_fetching
        self._link = link
        self._checks = checks
        self._closed = closed
        self._since_us = engine.clock.time_us()
        self.streams = streams = ClientStreams(engine, link, user)
        self.published_records = 0
        self._engine = engine
        self._begun = False
        self._user = user
        self._line = None if user is None else RequestLine(link)
        self._entries = None if user is None else UserEntries(user.of_topics)
        if user is not None:  # whether it asks for them or not: it may not have all that there are
            rights = user.of_topics
            streams.dictionaries = engine.dictionary_links.connection(link.name, self._introduce, rights)
        past, groups = PastRequests(engine, user), GroupStreams(engine, link, streams, user)
        self._traces = BrokerTraces(engine, link.name, user)
        self.requests: Answers = {
            "subscribe": streams.subscribe,
            "unsubscribe": streams.unsubscribe,
            "retained": streams.retained,
            "group_join": groups.join,
            "group_done": groups.done,
            "dictionary": self._dictionary,
            LINK_DICTIONARIES: self._too_late,
            "history": past.history,
            "last": past.last,
            "count": past.count,
            **self._traces.answers(),
            **answers,
        }

    def _begin(self, link: Link, message: tuple[Any, ...]) -> bool:
        """The client's first message; whether that was all it said."""
        self._begun = True
        if message[0] == REQUEST and message[2] == LINK_DICTIONARIES:
            check_request(CLIENT, message[2], message[3])
            own = self.streams.dictionaries
            if own is None:
                own = self._engine.dictionary_links.connection(link.name, self._introduce)
                self.streams.dictionaries = own
            for dictionary in message[3][0][:HELD_MAX]:
                if self._dictionaries.held(dictionary) is not None:
                    own.named(dictionary)
            link.reply(message[1], None)
            return True
        if link.role == "client":
            self._dictionaries.listeners.add(self._tell)
            for dictionary in self._dictionaries.families.dictionaries():
                self._tell(dictionary)
        return False

    def _tell(self, dictionary: Dictionary) -> None:
        self._link.send((DICTIONARY, dictionary.pack()))

    def _introduce(self, dictionary: Dictionary) -> None:
        own = self.streams.dictionaries
        if own is not None and own.introductions.needs_dictionary(dictionary.id):
            self._tell(dictionary)

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of the client."""
        if not self._begun and self._begin(link, message):
            return
        if message[0] == PUBLISH:
            self._publish(message[1], message[2])
        elif message[0] == PACKED:
            self._publish(message[1], message[2], is_packed=True)
        elif message[0] == REQUEST:
            self._asked(link, *message[1:])
        else:
            raise PeerError(f"a client sent a message of kind {message[0]}")

    def _asked(self, link: Link, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        work = self.requests.get(method)
        if work is None:
            if self._user is None:
                link.reply(number, UsageError(f"no such request: {method}"))
            else:
                link.reply(number, NotAuthorizedError.for_operators(f"the request {method!r}"))
            return
        check_request(CLIENT, method, arguments)
        if self._line is None:
            link.answer(number, work(*arguments))
        else:
            self._line.take(number, partial(work, *arguments))

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The client has gone."""
        if self._line is not None:
            self._line.clear()
        self._dictionaries.listeners.discard(self._tell)
        self.streams.leave()
        self._traces.close()
        self._closed(self)

    def on_writable(self, link: Link) -> None:
        """The socket has drained."""
        self.streams.drained()
        if self._line is not None:
            self._line.go_on()

    def resume_reading(self) -> None:
        """The pipelines have room again."""
        if self._line is None or not self._line.is_full:
            self._link.resume_reading()

    def send_away(self) -> None:
        """Have the client find another broker."""
        self._link.close()

    # -- publishing

    def _publish(self, tag: int, wires: Any, is_packed: bool = False) -> None:
        results: list[Any] = [None] * len(wires)
        left = len(wires)
        room = self._checks.room() if is_packed else None

        def done(index: int, result: Any) -> None:
            nonlocal left
            results[index] = result
            left -= 1
            if left == 0:
                self._link.send((ACK, tag, results))

        if not wires:
            self._link.send((ACK, tag, ()))
        for index, wire in enumerate(wires):
            try:
                if room is not None:
                    wire = self._checks.unpacked(wire, room)
                entry, count, meta = self._checks.entry(wire)
                told: Done = partial(done, index)
                if self._entries is not None:
                    left_of_it = self._users_entry(self._entries, entry, count, meta, told)
                    if left_of_it is None:
                        continue
                    entry, count, meta, told = left_of_it
                entry.done.append(told)
                pipeline = self._coordinators.forward(entry, count)
                self.published_records += count
                if self.streams.dictionaries is not None and not is_packed:  # a batch needs no dictionary
                    self._account(self.streams.dictionaries, meta, entry.wire)
            except LexicastError as error:
                # Also what breaks the rules: its client would send it again on the next link, for ever.
                done(index, str(error))
                continue
            if pipeline.full:
                self._link.pause_reading()

    def _users_entry(
        self, entries: UserEntries, entry: SealedEntry, count: int, meta: Meta, done: Done
    ) -> tuple[SealedEntry, int, Meta, Done] | None:
        """What is left of a user's entry, and who is told of its result; None: nothing, and that is told. Raises
        PeerError."""
        entries.check(meta, count)
        refused = entries.refused(meta)
        kept: WireEntry = entry.wire
        if refused:
            part = without(kept, meta, refused)
            if part is None:
                done(next(iter(refused.values())))
                return None
            done = partial(_tell_of_part, done, meta, refused)
            kept, meta = part, unpack_meta(part[1])
        kept = entries.signed(kept, meta)
        if kept is entry.wire:
            return entry, count, meta, done
        return *self._checks.entry(kept), done

    def _account(self, own: ConnectionDictionaries, meta: Meta, wire: Any) -> None:
        """What this link carries earns it dictionaries."""
        lengths, body = memoryview(wire[2]).cast("I"), wire[3]
        place = at = 0
        for run in meta.runs:
            size = sum(lengths[at : at + run.count])
            topic = meta.topics[run.topic]
            if size and not self._dictionaries.opted_out(topic):
                used = meta.dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else NONE
                to_raw = partial(self._engine.recoder.to_raw, min(run.encoding, FIRST_DICTIONARY), used or None)
                with suppress(DictionaryError):  # one that cannot be decompressed is its subscribers' affair
                    own.published(topic, used, (bytes(body[place : place + lengths[at]]),), size, run.count, to_raw)
            place += size
            at += run.count

    # -- requests

    async def _too_late(self, held: tuple[int, ...]) -> None:
        raise UsageError("dictionaries link by link are asked for first of all")

    async def _dictionary(self, dictionary: int) -> bytes:
        found = await self._fetching.fetch(dictionary)
        if self._user is not None and not self._user.may_have(found):
            raise NotAuthorizedError(
                f"dictionary {dictionary} holds pieces of messages that {self._user.who} may not read"
            )
        if self.streams.dictionaries is not None:
            self.streams.dictionaries.fetched(found)
        return found.pack()

    @property
    def received_bytes(self) -> int:
        """What the client has sent."""
        return self._link.received_bytes

    def described(self) -> dict[str, Any]:
        """For the list of clients."""
        link = self._link
        return {
            "id": link.name,
            "kind": "sampling broker" if self.streams.samples and self._user is None else "Python",
            "address": link.peer_address,
            "since_us": self._since_us,
            "subscriptions": len(self.streams),
            "published_records": self.published_records,
            "behind": bool(self.streams.lagging()),
        }


def _tell_of_part(done: Done, meta: Meta, refused: dict[int, str], result: Any) -> None:
    """The result of what was left of an entry, with what was refused of it."""
    done(results_with(meta, refused, result))
