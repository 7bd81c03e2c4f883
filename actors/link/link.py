"""A link: an ordered, authenticated stream of msgpack messages between two processes (DESIGN.md section 2).

Contract: messages arrive whole and in order, or the link is closed; whoever dialled dials again and resends what was
not acknowledged. Unix-domain sockets within a node, TCP between nodes. Nothing is delivered before both sides have
proved that they hold the cluster's key; where the link leaves its machine every byte from then on is encrypted and
covered (`handshake`). What the peer sends is only ever parsed as msgpack, and every field of it is looked at before
anything acts on it (`cluster.protocol.messages`): what is wrong costs the link, never the process.

However a link ends, nothing follows from it but that it has: an end is never taken for a word of the peer's, so who can
cut a link gains no more than by pulling the cable.

Liveness: both sides say something at least every `Beats.beat_s`, and a link on which nothing comes for too long is cut
(`cluster.protocol.heartbeat`): a node without power looks like a closed one. Every request has a limit.

Back-pressure: `writable` is False while more than `WRITE_HIGH_BYTES` wait to be sent (`on_writable` tells when that
ends); `pause_reading`/`resume_reading` push back on the peer. A message above `MESSAGE_BYTES_MAX` closes the link.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Protocol

import msgpack

from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats, Heartbeat
from lexicast.cluster.protocol.link_proofs import Heard
from lexicast.cluster.protocol.messages import BEAT, NONCE_BYTES, REPLY, REQUEST, check_message, unpacker
from lexicast.cluster.protocol.sealed_records import Opener, Sealer

from .gathered_writes import GATHERED_BYTES_MAX, GatheredWrites
from .open_requests import OpenRequests

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
# Elements of one array or map: msgpack makes room for as many as the header says before the first has come.
MESSAGE_ITEMS_MAX = 4 * 1024 * 1024
WRITE_HIGH_BYTES = 1024 * 1024
HANDSHAKE_TIMEOUT_S = 10.0
# A stranger may make a listener hold this much. A dialler's last read of the handshake may hold more than the
# handshake: a whole read of what the peer sends on opening.
HANDSHAKE_BYTES_MAX = 1024 * 1024
HANDSHAKE_ITEMS_MAX = 1024
# After so long a request has failed, whatever the peer may still do with it.
REQUEST_TIMEOUT_S = 30.0
BEATS = Beats()
UNHEARD_BEATS = 2.0
# What malformed data raises in code that expects it to be right; anything else is a defect of ours.
MALFORMED = (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException, msgpack.BufferFull)


class LinkUser(Protocol):
    """Who stands behind a link."""

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """A whole message arrived (REPLY messages are handled by the link itself)."""

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The link ended; called once, only after it was opened."""

    def on_writable(self, link: Link) -> None:
        """The link can be written again after `writable` was False."""


# More than 25 methods: six are callbacks of asyncio.
class Link(asyncio.Protocol):
    """One side of a link, a `ListenerLink` or a `DiallerLink`. Made by `sockets.listen` and `sockets.dial`.

    `received_bytes`: what the peer has sent.
    """

    # What the peer may send until it is known.
    handshake_bytes_max: ClassVar[int] = HANDSHAKE_BYTES_MAX
    handshake_items_max: ClassVar[int] = HANDSHAKE_ITEMS_MAX

    def __init__(
        self, key: bytes, cluster_id: str, opened: Callable[[Link], LinkUser | None], beats: Beats = BEATS
    ) -> None:
        self._key = key
        self._cluster_id = cluster_id
        self._opened = opened
        self._user: LinkUser | None = None
        self._transport: asyncio.Transport | None = None
        self._beats = beats
        self._unpacker = unpacker(self.handshake_bytes_max * 2, self.handshake_items_max)
        self._pack = msgpack.Packer(autoreset=True, buf_size=1 << 18).pack
        self._nonce = os.urandom(NONCE_BYTES)
        self._heard = Heard()
        # None: what goes in that direction is not encrypted, or not yet.
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._requests = OpenRequests()
        self._answers: set[asyncio.Task[None]] = set()
        # Requests and answers.
        self._gathered = GatheredWrites(self.send_packed)
        self._shaking_bytes = 0
        self._failure: LexicastError | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Link] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat: Heartbeat | None = None
        self.received_bytes = 0
        self.writable = True
        self.closed = False
        self.role = self.name = ""
        self.incarnation = 0
        self.info: dict[str, Any] = {}

    def keep_time(self, beats: Beats) -> None:
        """Beat by these: for whoever opens the link, while it does so."""
        self._beats = beats

    # -- what a user does with a link

    def send_packed(self, parts: bytes) -> None:
        """Send messages that are msgpack already, in one write with what was gathered in this turn before."""
        if self._transport is not None and not self.closed:
            if self._gathered.size_bytes:
                if len(parts) < GATHERED_BYTES_MAX:
                    parts = self._gathered.take() + parts
                else:
                    self._gathered.flush()
            self._transport.write(parts if self._sealer is None else self._sealer.seal(parts))

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message; silently dropped on a closed link (its user learns of the end by `on_close`)."""
        if self._transport is not None and not self.closed:
            self.send_packed(self._pack(message))

    def gather(self, message: tuple[Any, ...]) -> None:
        """`send` for who calls `flush` in the same turn: all of a turn in one write."""
        if self._transport is not None and not self.closed:
            self._gathered.hold(self._pack(message))

    def gather_packed(self, parts: bytes) -> None:
        """`gather` of messages that are msgpack already."""
        if self._transport is not None and not self.closed:
            self._gathered.hold(parts)

    def flush(self) -> None:
        """Send what was gathered."""
        self._gathered.flush()

    def request(self, method: str, *arguments: Any, timeout_s: float | None = None) -> asyncio.Future[Any]:
        """Send a REQUEST; the future gives its result.

        Raises there UnavailableError: the link ended first, or nothing was answered for `timeout_s` (None:
        REQUEST_TIMEOUT_S).
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, result: Any) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        self.call(done, method, *arguments, timeout_s=timeout_s)
        return future

    def call(
        self,
        done: Callable[[Exception | None, Any], None],
        method: str,
        *arguments: Any,
        timeout_s: float | None = None,
    ) -> None:
        """Like `request`, but `done(error, result)` runs while the REPLY is taken off the link.

        Whatever the peer sent after the REPLY is then still to come: for answers whose place among the DELIVERs
        matters. On a closed link `done` is called at once. Where `done` raises, the answer is none that can be used: it
        is called again, with that as a PeerError, and the link is closed.
        """
        if self.closed:
            done(UnavailableError("the link is closed"), None)
            return
        number = self._requests.add(done, method, REQUEST_TIMEOUT_S if timeout_s is None else timeout_s, self.name)
        if number is not None:
            self._gathered.add(self._pack((REQUEST, number, method, arguments)))

    def reply(self, number: int, error: Exception | None, result: Any = None) -> None:
        """Answer a REQUEST."""
        if not self.closed:
            told = None if error is None else f"{type(error).__name__}: {error}"
            self._gathered.add(self._pack((REPLY, number, told, result)))

    def answer(self, number: int, work: Awaitable[Any]) -> None:
        """Answer a REQUEST with what `work` gives or raises: of a coroutine in the turn in which it ends."""
        if isinstance(work, asyncio.Future):
            work.add_done_callback(partial(_answer_with, self, number))
            return

        async def run() -> None:
            try:
                result = await work
            except LexicastError as error:
                self.reply(number, error)
            except Exception as error:
                # The asker must not wait for ever because of a defect here, which the raise makes known.
                self.reply(number, UnavailableError(f"the request failed inside: {error!r}"))
                raise
            else:
                self.reply(number, None, result)

        task = asyncio.get_running_loop().create_task(run())
        self._answers.add(task)  # an event loop refers to its tasks only weakly
        task.add_done_callback(self._answers.discard)

    def pause_reading(self) -> None:
        """Stop taking messages from the peer."""
        if self._transport is not None and not self.closed and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take messages again."""
        if self._transport is not None and not self.closed and not self._transport.is_reading():
            self._transport.resume_reading()

    def write_buffer_bytes(self) -> int:
        """Bytes that wait to be sent."""
        if self._transport is None or self.closed:
            return 0
        return self._gathered.size_bytes + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close after sending what is buffered."""
        if self._transport is not None and not self.closed:
            self._gathered.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._gathered.clear()
        if self._transport is not None and not self.closed:
            self._transport.abort()

    @property
    def transport(self) -> asyncio.Transport | None:
        """What carries it."""
        return self._transport

    @property
    def peer_address(self) -> str:
        """Where the peer is, for people; "" where that is not known."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "here"

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transport is no asyncio.Transport subclass
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._handshake_late)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            if self._user is None:
                self._shaking_bytes += len(data)
                if self._shaking_bytes > self.handshake_bytes_max:
                    raise PeerError(f"more than {self.handshake_bytes_max} bytes before the handshake was done")
                self._feed(data)
                self._shake_hands()
            else:
                self._feed(data)
            if self._user is not None:
                for message in self._unpacker:
                    check_message(message)
                    kind = message[0]
                    if kind == REPLY:
                        self._requests.replied(message, self.name)
                    elif kind != BEAT:
                        self._user.on_message(self, message)
        except LexicastError as error:
            self._fail(error)
        except Exception as error:  # whatever it brings out in us: it costs the link
            if not isinstance(error, MALFORMED):
                log.exception("a message from %s could not be handled", self.name or "a peer")
            self._fail(PeerError(f"a message from {self.name or 'the peer'} cannot be read: {error!r}"))

    def _feed(self, data: bytes) -> None:
        """Have what has come parsed. Only what the peer has sent says that it lives: not the bytes of a record that
        somebody else keeps beginning."""
        if self._opener is None:
            self._unpacker.feed(data)
        else:
            opened = self._opener.open(data)
            if not opened:
                return
            for plain in opened:
                self._unpacker.feed(plain)
        if self._heartbeat is not None:
            self._heartbeat.heard(self._loop.time())

    def _shake_hands(self) -> None:
        """Take the handshake's messages, and no more of what has come."""
        while not self._is_open():
            for message in self._unpacker:
                check_message(message)
                plain = self._opener is None
                self._shake(message)
                sealed = plain and self._opener is not None
                if sealed or self._is_open():
                    self._parse_anew(sealed)
                    break
            else:
                return

    def _is_open(self) -> bool:
        """Asked anew each time: compiled code takes what it has seen of an attribute to be so still."""
        return self._user is not None

    def _parse_anew(self, sealed: bool) -> None:
        """What has come behind the last message is of another kind: `sealed`, or of any size."""
        rest = self._unpacker.read_bytes(self.handshake_bytes_max)
        if self._user is None:
            self._unpacker = unpacker(self.handshake_bytes_max * 2, self.handshake_items_max)
        else:
            self._unpacker = self._messages()
        if sealed:
            self._feed(rest)
        else:
            self._unpacker.feed(rest)

    def _messages(self) -> msgpack.Unpacker:
        """What reads the messages of a peer that is known."""
        return unpacker(MESSAGE_BYTES_MAX, MESSAGE_ITEMS_MAX)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._user is not None:
            self._user.on_writable(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        lost = UnavailableError(f"the link to {self.name or 'the peer'} ended")
        self._requests.end(lost, self.name)
        if not self._ready.done():
            self._ready.set_exception(error or lost)
            self._ready.exception()
        if self._user is not None:
            self._user.on_close(self, error or self._failure)

    # -- opened

    def _shake(self, message: tuple[Any, ...]) -> None:
        """One message of the handshake: see `ListenerLink` and `DiallerLink`."""
        raise NotImplementedError

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._user = self._opened(self)
        if self._user is None:
            self.abort()
            return
        if not self._ready.done():
            self._ready.set_result(self)
        self._heartbeat = Heartbeat(self._beats, self._loop.time())
        self._timer = self._loop.call_at(self._heartbeat.next_s, self._beat)

    def silent_s(self) -> float:
        """How long nothing has come from the peer, which says every `Beats.beat_s` that it lives."""
        return 0.0 if self._heartbeat is None else self._heartbeat.silent_s(self._loop.time())

    def is_heard(self) -> bool:
        """Whether the peer has said something in time; who has not is not gone yet, but cannot be said to be there."""
        return self.silent_s() < UNHEARD_BEATS * self._beats.beat_s

    def suspect(self) -> None:
        """Others take the peer for gone: where it is silent too, this link ends soon; see `Heartbeat.suspect`."""
        if self._heartbeat is not None and self._timer is not None and not self.closed:
            self._heartbeat.suspect(self._loop.time())
            self._timer.cancel()
            self._timer = self._loop.call_at(self._heartbeat.next_s, self._beat)

    def _beat(self) -> None:
        """Say that this side lives; look whether the peer does."""
        assert self._heartbeat is not None
        now_s = self._loop.time()
        if self._transport is not None and not self._transport.is_reading():
            # What is not read cannot be heard: while this side holds the peer up it waits.
            self._heartbeat.heard(now_s)
        says, gone = self._heartbeat.tick(now_s)
        if says:
            self.send((BEAT,))
        if gone:
            for_s = f"for {self._heartbeat.patience_s:.1f} s"
            self._fail(UnavailableError(f"nothing has come from {self.name or 'the peer'} {for_s}"))
            return
        self._timer = self._loop.call_at(self._heartbeat.next_s, self._beat)

    def _handshake_late(self) -> None:
        self._fail(PeerError(f"no handshake within {HANDSHAKE_TIMEOUT_S:.0f} s"))

    def _fail(self, error: LexicastError) -> None:
        self._failure = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        self.abort()

    async def wait_open(self) -> Link:
        """Return when the handshake is done. Raises AuthenticationError, PeerError or OSError."""
        return await self._ready


def _answer_with(link: Link, number: int, answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        return
    error = answer.exception()
    if error is None:
        link.reply(number, None, answer.result())
    elif isinstance(error, LexicastError):
        link.reply(number, error)
    else:
        log.error("a request failed inside", exc_info=error)
        link.reply(number, UnavailableError(f"the request failed inside: {error!r}"))
