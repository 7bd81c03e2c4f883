"""What everything in a story shares: its seed's choices, the clock, the wires, the transcript."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from lexicast.cluster.config.tables import Config
from lexicast.cluster.protocol.heartbeat import Beats

from .network import Network
from .transcript import Transcript
from .virtual import NOBODY, SimLoop, SimProcess

GROUPS = 3
TOPICS = (b"a", b"b/1", b"b/2", b"c")
FILTERS = (b"#", b"b/+", b"a", b"c", b"b/1")


class Scene:
    """See the module's docstring; it is a `Clock`, by which all that runs in the story goes."""

    def __init__(self, seed: int, transcript: Transcript) -> None:
        self.seed = seed
        self.choose = random.Random(seed)
        self.loop = SimLoop(random.Random(seed + 1))
        self.transcript = transcript
        transcript.now_s = self.loop.time
        self.network = Network(self.loop, seed, transcript)
        self.config = Config().replaced(
            broker__cache_bytes_max=self.choose.choice([0, 300, 1 << 20]), link__batch_bytes_max=4096
        )
        self.coordinators = tuple([f"coordinator-{i}" for i in range(self.choose.randint(1, 3))])
        self.copies = min(len(self.coordinators), self.choose.choice([1, 2, 2, 3]))
        # After so long a silent coordinator is taken for lost; and a silent link of a broker is ended.
        self.detect_s = self.choose.choice([0.3, 0.5, 1.0])
        self.broker_beats = Beats(0.2, 1.0)
        # Where the coordination server is.
        self.head = "node-0"
        self.processes: list[SimProcess] = []

    def time_us(self) -> int:
        """See `Clock`."""
        return int(self.loop.time() * 1e6) + 1

    def monotonic(self) -> float:
        """See `Clock`."""
        return self.loop.time()

    def node_of(self, name: str) -> str:
        """Where a coordinator or broker runs: one of each is on a node, by their numbers."""
        return f"node-{int(name.rpartition('-')[2]) % len(self.coordinators)}"

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
