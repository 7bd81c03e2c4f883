"""Wires without sockets: links whose bytes are late, come in pieces, or do not come, in one direction or in both.

What is lost on the way is sent again by TCP: a direction that is broken holds up what goes there until it is mended, or
until the heartbeats of whoever hears nothing end the link.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lexicast.cluster.protocol.heartbeat import Beats

from ...link.handshake import DiallerLink, ListenerLink
from ...link.link import BEATS, Link, LinkUser
from ...link.sockets import DIAL_TIMEOUT_S
from .transcript import Transcript
from .virtual import NOBODY, PROCESS, SimLoop, SimProcess

WIRE_BYTES_MAX = 4_096
# Less arrives in one piece.
SPLIT_BYTES = 8
KEY, CLUSTER_ID = b"k" * 32, "simulated"


class Listener(NamedTuple):
    """Who is reached at an address."""

    process: SimProcess
    opened: Callable[[Link], LinkUser | None]
    beats: Beats


class Network:
    """All wires, and which ways between nodes are broken."""

    def __init__(self, loop: SimLoop, seed: int, transcript: Transcript) -> None:
        self.loop = loop
        self.transcript = transcript
        self.listeners: dict[str, Listener] = {}
        self.wires: list[SimWire] = []
        self._seed = seed
        self._dialled: dict[str, int] = {}
        self._choose = random.Random(f"{seed}/connections")
        self._broken: Counter[tuple[str, str]] = Counter()
        self._waiting: list[tuple[str, str, Callable[[], None]]] = []

    def is_broken(self, source: str, target: str) -> bool:
        """Whether nothing comes from one node to another."""
        return self._broken[source, target] > 0

    def cut_way(self, source: str, target: str) -> None:
        """Nothing comes from one node to another from now on, until it is mended as often as it was cut."""
        self._broken[source, target] += 1

    def mend_way(self, source: str, target: str) -> None:
        """What was held up comes now."""
        self._broken[source, target] -= 1
        if self.is_broken(source, target):
            return
        waiting, self._waiting = self._waiting, []
        for start, end, work in waiting:
            if (start, end) == (source, target):
                self.loop.call_soon(work, context=NOBODY)
            else:
                self._waiting.append((start, end, work))

    def when_mended(self, source: str, target: str, work: Callable[[], None]) -> None:
        """Have `work` done once something comes from one node to the other again."""
        self._waiting.append((source, target, work))

    def standing(self) -> list[SimWire]:
        """The wires that are not cut."""
        self.wires = [wire for wire in self.wires if not wire.cut]
        return self.wires

    def ends_of(self, process: SimProcess) -> None:
        """A process has been killed: whoever it was linked to hears of it."""
        for wire in self.standing():
            if wire.process is process:
                wire.abort()

    def connect(
        self, client: SimProcess, made: asyncio.Protocol, server: SimProcess, accept: Callable[[], asyncio.Protocol]
    ) -> None:
        """A plain connection from one process to another: `made` is its side's protocol, `accept` makes the other's."""
        choose = [random.Random(self._choose.random()) for _ in range(2)]
        sides = (SimWire(self, choose[0], made, client), SimWire(self, choose[1], made, server))
        sides[0].peer, sides[1].peer = sides[1], sides[0]
        sides[0].told = sides[1].told = False
        self.wires += sides
        server.do(sides[1].accepted, accept)
        client.do(made.connection_made, sides[0])

    async def dial(
        self,
        addresses: Sequence[str],
        key: bytes,
        cluster_id: str,
        hello: tuple[str, str, int],
        opened: Callable[[Link], Any],
        beats: Beats = BEATS,
        timeout_s: float = DIAL_TIMEOUT_S,
    ) -> Link:
        """In the place of `link.sockets.dial_any`."""
        source = PROCESS.get()
        assert source is not None
        await asyncio.sleep(0.001)
        found = self.listeners.get(addresses[0])
        if found is None or not found.process.alive:
            raise OSError("nobody listens")
        if self.is_broken(source.node, found.process.node) or self.is_broken(found.process.node, source.node):
            await asyncio.sleep(timeout_s)
            raise TimeoutError("nothing has come back")
        dialler = DiallerLink(key, cluster_id, hello, opened, beats)
        listener = ListenerLink(KEY, CLUSTER_ID, found.opened, {}, found.beats)
        # By the dialler's own count: the order in which several dial in one instant must not matter.
        self._dialled[hello[1]] = count = self._dialled.get(hello[1], 0) + 1
        choose = [random.Random(f"{self._seed}/{hello}/{count}/{side}") for side in ("dialler", "listener")]
        sides = (SimWire(self, choose[0], dialler, source), SimWire(self, choose[1], listener, found.process))
        sides[0].peer, sides[1].peer = sides[1], sides[0]
        self.wires += sides
        found.process.do(listener.connection_made, sides[1])
        dialler.connection_made(sides[0])
        try:
            async with asyncio.timeout(timeout_s):
                return await dialler.wait_open()
        except BaseException:
            dialler.abort()
            raise


# More than 25 methods: most are a transport's, as asyncio has them.
class SimWire(asyncio.Transport):
    """One side of a link: what is written arrives later, in order, in pieces; or never, once a side is cut."""

    def __init__(self, network: Network, choose: random.Random, link: asyncio.Protocol, process: SimProcess) -> None:
        super().__init__()
        self._network, self._loop, self._choose, self._link = network, network.loop, choose, link
        self.process = process
        self.peer: SimWire = self
        # Whether the transcript has what is written.
        self.told = True
        self._clear_at = 0.0
        self._on_way = 0
        self._line: deque[bytes] = deque()  # timers of the same time go off in any order, bytes must not
        self._held: list[bytes] = []
        self._reading, self._paused, self.cut = True, False, False

    def _in_process(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Let this side's process do something."""
        self._loop.call_soon(work, *arguments, context=self.process.context)

    @property
    def _broken(self) -> bool:
        return self._network.is_broken(self.process.node, self.peer.process.node)

    def _when_mended(self, work: Callable[[], None]) -> None:
        self._network.when_mended(self.process.node, self.peer.process.node, work)

    def accepted(self, accept: Callable[[], asyncio.Protocol]) -> None:
        """The process on this side takes the connection."""
        self._link = accept()
        self._link.connection_made(self)

    # -- what is written

    def write(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are ever written
        if self.cut:
            return
        if self.told:
            self._network.transcript.sent(self.process.name, self.peer.process.name, data)
        at = self._choose.randint(0, len(data)) if len(data) > SPLIT_BYTES else 0
        for piece in (data[:at], data[at:]) if at else (data,):
            delay = self._choose.choice([0.0, 0.0001, 0.001, 0.02]) * self._choose.random()
            self._clear_at = max(self._clear_at, self._loop.time() + delay)
            self._on_way += len(piece)
            self._line.append(piece)
            self._loop.call_at(self._clear_at, self._pass, context=NOBODY)
        if self._on_way > WIRE_BYTES_MAX and not self._paused:
            self._paused = True
            self._link.pause_writing()

    def _pass(self) -> None:
        """The oldest piece that is on its way is there, unless the way is broken."""
        if self._broken:
            self._when_mended(self._pass)
        else:
            self.peer.arrive(self._line.popleft())

    def arrive(self, piece: bytes) -> None:
        """Bytes of the peer are here."""
        self._held.append(piece)
        self._in_process(self._feed)

    def _feed(self) -> None:
        while self._held and self._reading and not self.cut:
            taken = self._held.pop(0)
            self.peer.taken(len(taken))
            self._link.data_received(taken)

    def taken(self, size: int) -> None:
        """The peer has taken bytes."""
        self._on_way -= size
        if self._paused and self._on_way <= WIRE_BYTES_MAX // 4 and not self.cut:
            self._paused = False
            self._in_process(self._resume_writing)

    def _resume_writing(self) -> None:
        if not (self.cut or self._paused):
            self._link.resume_writing()

    # -- asyncio.Transport

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._in_process(self._feed)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """WIRE_BYTES_MAX holds."""

    def get_write_buffer_size(self) -> int:
        return self._on_way

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        """Cut: this side knows at once; the other a little later, and may still get what is on the way, or not."""
        if not self.cut:
            self.cut = True
            self._in_process(self._link.connection_lost, None)
            late = self._clear_at if self._choose.random() < 0.5 else 0.0
            at = max(late, self._loop.time() + 0.03 * self._choose.random())
            self._loop.call_at(at, self._tell_end, context=NOBODY)

    close = abort

    def is_closing(self) -> bool:
        return self.cut

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The peer closes when it has read the last words."""

    def _tell_end(self) -> None:
        if self._broken:
            self._when_mended(self._tell_end)
        else:
            self.peer.lost()

    def lost(self) -> None:
        """The other side was cut."""
        if not self.cut:
            self.cut = True
            self._in_process(self._link.connection_lost, None)
