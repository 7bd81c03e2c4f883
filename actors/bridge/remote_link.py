"""A bridge's connection to the other broker: bytes to packets and back, its life, its silence.

What comes is given to `received` a read at a time. Where the other side reads slowly `wait_writable` waits; where more
has come than the bridge can store, `pause` stops reading.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from typing import Final, cast

from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets
from lexicast.cluster.errors import ConfigError, UnavailableError

from ..mqtt.codec import PacketReader, encode_packet
from ..mqtt.codec.packets import Packet, PingReq, Received
from .handshake import level_of

DIAL_S: Final = 10.0
# MQTT's own (section 2.1.4): what a cluster does not take is told apart, message by message.
PACKET_BYTES_MAX: Final = 268_435_460
# Unsent; more is not given to a connection.
OUTPUT_BYTES_MAX: Final = 1024 * 1024
# A peer that says nothing for so many keep-alives is gone (3.1.2.10).
SILENCE: Final = 1.5


class RemoteLink(asyncio.Protocol):
    """See the module's docstring. `ended` is set, with why in `reason`, once it is over."""

    def __init__(self, version: int, received: Callable[[list[Received]], None]) -> None:
        self._version = version
        self._received = received
        self._reader = PacketReader(PACKET_BYTES_MAX, from_client=False, version=version)
        self._writable = asyncio.Event()
        self._heard = 0.0
        self._beating: asyncio.TimerHandle | None = None
        self._keep_alive_s = 0.0
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        self.reason = ""
        self.bytes_sent = 0
        self.bytes_received = 0

    # -- the transport's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's classes
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._heard = asyncio.get_running_loop().time()
        self.bytes_received += len(data)
        if self.ended.is_set():
            return
        items = self._reader.feed(data)
        if items:
            self._received(items)
        if self._reader.error is not None:
            self.end(f"it sends what is no MQTT: {self._reader.error}")

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._end(f"the connection is lost: {error}" if error else "it has closed the connection")

    # -- the bridge's

    def send(self, data: bytes) -> None:
        """To the other side; nothing where it is over."""
        if self._transport is not None and not self.ended.is_set():
            self.bytes_sent += len(data)
            self._transport.write(data)

    def send_packet(self, packet: Packet) -> None:
        """One packet alone."""
        self.send(encode_packet(packet, self._version))

    async def wait_writable(self) -> None:
        """Returns when more may be sent, or it is over."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        """Whether more may be sent now."""
        return self._writable.is_set() and not self.ended.is_set()

    def pause(self, paused: bool) -> None:
        """Whether what comes is left in the socket."""
        if self._transport is not None and not self.ended.is_set():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
                self._heard = asyncio.get_running_loop().time()

    def keep_alive(self, keep_alive_s: int) -> None:
        """Ping so often, and end it where nothing is heard."""
        self._keep_alive_s = float(keep_alive_s)
        self._beat()

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        if self.ended.is_set() or not self._keep_alive_s:
            return
        is_reading = self._transport is not None and self._transport.is_reading()
        if is_reading and loop.time() - self._heard > SILENCE * self._keep_alive_s:
            self.end(f"nothing is heard of it for {SILENCE * self._keep_alive_s:.0f} s")
            return
        self.send_packet(PingReq())
        self._beating = loop.call_later(self._keep_alive_s / 2, self._beat)

    def end(self, reason: str) -> None:
        """Close it at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str) -> None:
        """Close it once what was sent has gone."""
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def _end(self, reason: str) -> None:
        if not self.ended.is_set():
            self.reason = reason
        self.ended.set()
        self._writable.set()
        if self._beating is not None:
            self._beating.cancel()


async def dial_remote(
    definition: BridgeDefinition, context: ssl.SSLContext | None, received: Callable[[list[Received]], None]
) -> RemoteLink:
    """Connect. Raises UnavailableError: why it cannot be reached."""
    host, port = definition.endpoint
    named = None if context is None else host  # told to the other side (SNI), whether it is verified or not
    try:
        async with asyncio.timeout(DIAL_S):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: RemoteLink(level_of(definition), received), host, port, ssl=context, server_hostname=named
            )
    except TimeoutError:
        raise UnavailableError(f"{host}:{port} does not answer within {DIAL_S:.0f} s") from None
    except ssl.SSLCertVerificationError as error:
        raise UnavailableError(f"{host}:{port}: its certificate is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise UnavailableError(f"{host}:{port}: TLS fails: {error.reason or error}") from None
    except OSError as error:
        raise UnavailableError(f"{host}:{port} cannot be reached: {error.strerror or error}") from None
    return link


def tls_context(definition: BridgeDefinition, secrets: BridgeSecrets) -> ssl.SSLContext | None:
    """What its connections are encrypted with; None without TLS. Raises ConfigError for files that are none."""
    if not definition.tls:
        return None
    context = ssl.create_default_context()
    context.check_hostname = definition.verify_host
    try:
        if secrets.ca:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = definition.verify_host
            context.load_verify_locations(cadata=secrets.ca.decode("ascii"))
        if secrets.certificate:
            _load_certificate(context, secrets)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"[{definition.name}]: ca, certificate or key: {error}") from None
    return context


def _load_certificate(context: ssl.SSLContext, secrets: BridgeSecrets) -> None:
    """OpenSSL takes it from a file alone; that is its owner's, and goes at once."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(secrets.certificate + b"\n" + secrets.key)
        file.flush()
        context.load_cert_chain(file.name)
