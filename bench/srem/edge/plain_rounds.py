"""The fan-out of plain subscribers, round after round: a line names a load, the answer is its seconds of CPU.

Run as a file, by an interpreter that has this or an earlier lexicast in its path: so it uses only what both have.
`--content N`: so many content subscriptions to other topics are at the same broker.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array
from typing import Any, Final

from lexicast.actors.broker.encoding import Grant, Kind
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.mqtt.codec.packets import V5
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config

GROUPS: Final = 100
PAYLOAD: Final = b"x" * 140
# Of each load: topics of a block, publications of each, subscribers of each topic, blocks a round.
LOADS: Final = {"one": (1, 400, 1, 500), "hundred": (1, 100, 100, 300), "fleet": (20, 1, 2, 300)}


class PlainSession(Subscriber):
    """A session that counts what it gets."""

    __slots__ = ("bytes",)

    def __init__(self, engine: BrokerEngine) -> None:
        super().__init__(engine.subscriptions, Kind(V5))
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Take them."""
        self.bytes += len(data)


class PlainLoad:
    """One load at a broker's engine of its own."""

    def __init__(self, name: str, content: int) -> None:
        self._engine = BrokerEngine("bench", 1, GROUPS, Config(), SystemClock())
        topics, each, subscribers, self._blocks = LOADS[name]
        names = tuple([b"plain/%s/%d" % (name.encode(), number) for number in range(topics)])
        for topic in names:
            for _ in range(subscribers):
                self._engine.fanout.insert({topic: Grant()}, PlainSession(self._engine))
        runs = tuple([Run(0, number, 0, 0, 0, None, -1, each) for number in range(topics)])
        self._count = topics * each
        self._meta = pack_meta(Meta(names, runs, (), (), (), ()))
        self._lengths = array("I", [len(PAYLOAD)] * self._count).tobytes()
        self._next = 0
        if content:
            self._subscribe_content(content)

    def _subscribe_content(self, count: int) -> None:
        from lexicast.cluster.content.predicate import Predicate  # which an earlier one does not have

        for number in range(count):
            grant = Grant(where=Predicate.parse(f"a = {number}"))
            self._engine.content.insert({b"content/#": grant}, PlainSession(self._engine))

    def wires(self) -> list[Any]:
        """A round's blocks."""
        made = []
        for _ in range(self._blocks):
            first, self._next = self._next, self._next + self._count
            last, body = self._next - 1, PAYLOAD * self._count
            block = Block(0, 1, first, last, 0, PUBLICATIONS, self._meta, self._lengths, body)
            made.append(block.to_wire())
        return made

    def round_s(self) -> float:
        """Seconds of CPU."""
        wires, live = self.wires(), self._engine.live
        gc.collect()
        began = time.process_time()
        for wire in wires:
            live.on_blocks([wire])
        return time.process_time() - began


def main() -> None:
    """See the module's docstring."""
    import asyncio

    parser = argparse.ArgumentParser()
    parser.add_argument("--content", type=int, default=0)
    content = parser.parse_args().content

    async def made() -> dict[str, PlainLoad]:
        return {name: PlainLoad(name, content) for name in LOADS}

    loads = asyncio.run(made())
    for line in sys.stdin:
        print(loads[line.strip()].round_s(), flush=True)


if __name__ == "__main__":
    main()
