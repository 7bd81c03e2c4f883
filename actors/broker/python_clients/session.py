"""The session of one Python client on its link: what it publishes, and its requests.

A client's entries go to the coordinators unchanged (it is its own producer). What is spoken is in
`cluster.protocol.messages`; how a client behaves, in `client.client`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from lexicast.cluster.errors import LexicastError, PeerError, UsageError
from lexicast.cluster.protocol.messages import ACK, DICTIONARY, PUBLISH, REQUEST
from lexicast.cluster.protocol.requests import CLIENT
from lexicast.cluster.protocol.shapes import check_request
from lexicast.compression.dictionary import Dictionary

from ...link.link import Link
from ..engine import BrokerEngine
from .entry_checks import EntryChecks
from .past_requests import PastRequests
from .streams import ClientStreams

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
    ) -> None:
        """`answers`: to requests that do not concern this client alone, by method name; `closed` is told at the end."""
        self._coordinators = engine.coordinators
        self._dictionaries = engine.dictionaries
        self._fetching = engine.dictionary_fetching
        self._link = link
        self._checks = checks
        self._closed = closed
        self._since_us = engine.clock.time_us()
        self.streams = streams = ClientStreams(engine, link)
        self.published_records = 0
        past = PastRequests(engine)
        self.requests: Answers = {
            "subscribe": streams.subscribe,
            "unsubscribe": streams.unsubscribe,
            "retained": streams.retained,
            "dictionary": self._dictionary,
            "history": past.history,
            "last": past.last,
            "count": past.count,
            **answers,
        }

    def start(self) -> None:
        """Tell the client of the dictionaries that there are, and of new ones from now on."""
        self._dictionaries.listeners.add(self._tell)
        for dictionary in self._dictionaries.families.dictionaries():
            self._tell(dictionary)

    def _tell(self, dictionary: Dictionary) -> None:
        self._link.send((DICTIONARY, dictionary.pack()))

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of the client."""
        if message[0] == PUBLISH:
            self._publish(message[1], message[2])
        elif message[0] == REQUEST:
            work = self.requests.get(message[2])
            if work is None:
                link.reply(message[1], UsageError(f"no such request: {message[2]}"))
            else:
                check_request(CLIENT, message[2], message[3])
                link.answer(message[1], work(*message[3]))
        else:
            raise PeerError(f"a client sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The client has gone."""
        self._dictionaries.listeners.discard(self._tell)
        self.streams.leave()
        self._closed(self)

    def on_writable(self, link: Link) -> None:
        """The socket has drained."""
        self.streams.drained()

    def resume_reading(self) -> None:
        """The pipelines have room again."""
        self._link.resume_reading()

    def send_away(self) -> None:
        """Have the client find another broker."""
        self._link.close()

    # -- publishing

    def _publish(self, tag: int, wires: Any) -> None:
        results: list[Any] = [None] * len(wires)
        left = len(wires)

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
                entry, count = self._checks.entry(wire)
                entry.done.append(partial(done, index))
                pipeline = self._coordinators.forward(entry, count)
                self.published_records += count
            except LexicastError as error:
                # Also what breaks the rules: its client would send it again on the next link, for ever.
                done(index, str(error))
                continue
            if pipeline.full:
                self._link.pause_reading()

    # -- requests

    async def _dictionary(self, dictionary: int) -> bytes:
        return (await self._fetching.fetch(dictionary)).pack()

    def described(self) -> dict[str, Any]:
        """For the list of clients."""
        link = self._link
        return {
            "id": link.name,
            "kind": "sampling broker" if self.streams.samples else "Python",
            "address": link.peer_address,
            "since_us": self._since_us,
            "subscriptions": len(self.streams),
            "published_records": self.published_records,
            "behind": bool(self.streams.lagging()),
        }
