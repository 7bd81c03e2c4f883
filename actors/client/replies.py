"""Requests and their replies, as MQTT 5 has them (section 4.10): a request names the topic that its reply is to go to,
and data that the reply carries back.

A client has one topic for the replies to all of its requests, made with the first of them, which nobody can guess:
`replies/CLIENT_ID/RANDOM`. Both are publications like any other: any MQTT 5 client may request, and may reply.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final, Protocol

from lexicast.cluster.errors import DictionaryError, LexicastError, NoReplyError, UsageError
from lexicast.cluster.positions import Position

from .internals import closed_error
from .messages import Message, Properties, as_properties
from .subscription import Subscription

PREFIX: Final = "replies/"
TOKEN_BYTES: Final = 12
# Bytes of the client id in a reply's topic: of a longer one nothing is there.
NAME_BYTES_MAX: Final = 1_024

log = logging.getLogger("lexicast.client")


class PublishRequest(Protocol):
    """`Client.publish`, as a request needs it."""

    async def __call__(
        self, topic: str, payload: bytes | str, *, qos: int, expiry_s: float, properties: Properties
    ) -> Position: ...


class Requester:
    """The requests of one client that wait for their replies. `subscribe`: to a topic, from now on."""

    def __init__(self, client_id: str, subscribe: Callable[[str], Subscription], publish: PublishRequest) -> None:
        self._subscribe = subscribe
        self._publish = publish
        self.topic = reply_topic(client_id)
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._numbers = count()
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def request(
        self, topic: str, payload: bytes | str, timeout_s: float, qos: int, properties: Properties | None
    ) -> Message:
        """See `Client.request`."""
        if not timeout_s > 0:
            raise UsageError(f"timeout_s={timeout_s!r}: give seconds above 0")
        number = b"%d" % next(self._numbers)
        asked = replace(properties or Properties(), response_topic=self.topic, correlation_data=number)
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._listen()
                self._waiting[number] = reply
                await self._publish(topic, payload, qos=qos, expiry_s=timeout_s, properties=asked)
                return await reply
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoReplyError(
                f"no reply to the request to {topic!r} within {timeout_s:.1f} s: does anybody serve that topic?"
            ) from None
        finally:
            self._waiting.pop(number, None)
            if not reply.cancel() and not reply.cancelled():
                reply.exception()  # it is told where the request was ended by something else

    async def _listen(self) -> None:
        async with self._opening:
            if self._reader is not None and not self._reader.done():
                return
            subscription = await self._subscribe(self.topic).__aenter__()
            self._reader = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: Subscription) -> None:
        error: LexicastError = closed_error()
        try:
            while True:
                try:
                    self._take(await anext(subscription))
                except DictionaryError as wrong:
                    log.warning("a reply cannot be read: %s", wrong)
        except StopAsyncIteration:
            pass
        except LexicastError as ended:
            error = ended
        finally:
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(error)

    def _take(self, message: Message) -> None:
        """A reply that nobody waits for any more, or a second one, is left alone."""
        correlation = None if message.properties is None else message.properties.correlation_data
        reply = None if correlation is None else self._waiting.get(correlation)
        if reply is not None and not reply.done():
            reply.set_result(message)


def reply_topic(client_id: str) -> str:
    """A topic for the replies to one client, another one each time."""
    token = secrets.token_hex(TOKEN_BYTES)
    is_level = not {"+", "#", "\0"} & set(client_id) and len(client_id.encode(errors="replace")) <= NAME_BYTES_MAX
    return f"{PREFIX}{client_id}/{token}" if is_level else f"{PREFIX}{token}"


def to_requester(request: Message, properties: Properties | Mapping[str, str] | None) -> tuple[str, Properties]:
    """The topic and the properties of the reply to `request`. Raises UsageError: it asks for none."""
    asked = request.properties
    if asked is None or asked.response_topic is None:
        raise UsageError(f"the message to {request.topic!r} asks for no reply: it has no response topic")
    given = replace(as_properties(properties), correlation_data=asked.correlation_data)
    return asked.response_topic, given
