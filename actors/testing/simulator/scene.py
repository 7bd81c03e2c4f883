"""What everything in a story shares: its seed's choices, the clock, the wires, the transcript."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from lexicast.cluster.clock import US_PER_S
from lexicast.cluster.config.tables import Config
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.skipcloud.identifiers import CloudShape

from .conditions import content_payload
from .network import Network
from .transcript import Transcript
from .virtual import NOBODY, SimLoop, SimProcess

GROUPS = 3
TOPICS = (b"a", b"b/1", b"b/2", b"c")
# When stories begin, by clocks that are right.
BEGIN_US = 1_700_000_000 * US_PER_S
FILTERS = (b"#", b"b/+", b"a", b"c", b"b/1")
NODES = ("node-0", "node-1", "node-2")


class NodeClock:
    """The `Clock` of a node; `ahead_s` may jump."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def time_us(self) -> int:
        """See `Clock`."""
        return BEGIN_US + int((self._loop.time() + self.ahead_s) * US_PER_S)

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._loop.time()


# Stories of seeds from here on have slow disks too.
SLOW_DISKS_FROM = 1_000_000
# And from here on content subscriptions and matchers.
CONTENT_FROM = 3_000_000
# And from here on shared subscriptions in their place.
SHARES_FROM = 4_000_000


class Scene:
    """See the module's docstring."""

    def __init__(self, seed: int, transcript: Transcript) -> None:
        self.seed = seed
        self.choose = random.Random(seed)
        self.loop = SimLoop(random.Random(seed + 1))
        self.transcript = transcript
        transcript.now_s = self.loop.time
        self.network = Network(self.loop, seed, transcript)
        self.config = Config().replaced(
            broker__cache_bytes_max=self.choose.choice([0, 300, 1 << 20]),
            broker__session_save_s=0.3,
            link__batch_bytes_max=4096,
            link__request_timeout_s=3.0,
            mqtt__allow_anonymous="always",
            mqtt__inflight_max=self.choose.choice([2, 1_000]),
        )
        self.coordinators = tuple([f"coordinator-{i}" for i in range(self.choose.choice([1, 2, 2, 3, 3]))])
        self.copies = min(len(self.coordinators), self.choose.choice([1, 2, 2, 3, 3]))
        # After so long a silent coordinator is taken for lost; and a silent link of a broker is ended.
        self.detect_s = self.choose.choice([0.3, 0.5, 1.0])
        self.broker_beats = Beats(0.2, 1.0)
        # Drawn apart, so that what older seeds play stays what it was.
        apart = random.Random(seed + 2)
        self.slow_disks = seed >= SLOW_DISKS_FROM and apart.random() < 0.5
        # For so long a coordinator may owe what it is to store.
        self.slow_s = apart.choice([0.3, 0.6, 1.0]) if self.slow_disks else 60.0
        # What only stories with content subscriptions draw.
        self.content = CONTENT_FROM <= seed < SHARES_FROM
        self.content_dice = random.Random(seed + 3)
        if self.content:
            self.config = self.config.replaced(node__matchers=1)
        # What only stories with shared subscriptions draw.
        self.shares = seed >= SHARES_FROM
        self.share_dice = random.Random(seed + 4)
        # How many things have gone wrong.
        self.mishaps = 0
        # Drawn apart too: of some stories beyond how many matchers they form an overlay, and its shape.
        self.overlay_dice = apart = random.Random(seed + 5)
        self.overlay_beyond = apart.choice([0, 0, 1, 3]) if self.content and apart.random() < 0.4 else None
        self.overlay_shape = CloudShape(2, apart.choice([1, 2, 3]), contacts_a_child=1)
        # Where the coordination server is.
        self.head = self.choose.choice(NODES)
        self.clocks = {node: NodeClock(self.loop) for node in NODES}
        self.processes: list[SimProcess] = []
        # Whether some disk has been full.
        self.was_full = False

    def node_of(self, name: str) -> str:
        """Where a coordinator or broker runs: one of each is on a node, by their numbers."""
        return NODES[int(name.rpartition("-")[2]) % len(NODES)]

    def payload(self, name: bytes) -> bytes:
        """The payload of that name: the name itself, or where conditions are asked of it a map."""
        return content_payload(name) if self.content else name

    def new_process(self, name: str, node: str) -> SimProcess:
        """A process that begins to run."""
        self.processes.append(SimProcess(name, node))
        return self.processes[-1]

    def later(self, delay_s: float, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start a coroutine after a while, as a part of no process."""
        self.loop.call_later(delay_s, self.begin, work, *arguments, context=NOBODY)

    def begin(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start a coroutine, as a part of no process."""
        self.loop.create_task(work(*arguments), context=NOBODY.copy())

    def at(self, when_s: float, work: Callable[..., Any], *arguments: Any) -> None:
        """Do something at that time, as a part of no process."""
        self.loop.call_at(when_s, work, *arguments, context=NOBODY)
