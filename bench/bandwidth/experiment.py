"""The bandwidth experiment's runs: narrow links, all publishers in one process, all subscribers in another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import PeerError

from ..data.message_files import MessageFile
from ..stage.links import Links
from ..stage.parts import Stage
from ..stage.servers import Address
from .cells import Moved, Setting

CLIENTS: Final = "lexicast.bench.bandwidth.clients"
PUBLISHERS: Final = "publishers"
SUBSCRIBERS: Final = "subscribers"
BITS: Final = 8
RUN_TIMEOUT_S: Final = 1_200.0


class Experiment:
    """The cluster's address, and how a run goes."""

    def __init__(self, broker: Address, directory: Path) -> None:
        """`directory`: where the parts' logs go."""
        self._broker = f"{broker.host}:{broker.port}"
        self._directory = directory
        self._runs = 0

    async def run(self, setting: Setting, data: MessageFile) -> Moved:
        """One run. Raises `PeerError` when something was lost or a part died."""
        self._runs += 1
        async with Stage(self._directory) as stage:
            addresses = dict.fromkeys((PUBLISHERS, SUBSCRIBERS), self._broker)
            bytes_per_s = setting.mbit * 1e6 / BITS
            links = await Links.open(stage, addresses, name=f"links-{self._runs}", bytes_per_s=bytes_per_s)
            topic = f"cold{_letters(self._runs)}/{data.name}"
            common = ["--method", setting.method, "--count", str(setting.clients), "--topic", topic]
            common += ["--file", str(data.file), "--messages", str(data.messages)]
            parts = {
                role: stage.part(f"{role}-{self._runs}", CLIENTS, [role, "--port", str(links.ports[role]), *common])
                for role in (SUBSCRIBERS, PUBLISHERS)
            }
            for part in parts.values():
                await part.start()
            for part in parts.values():
                await part.wait_for("ready")
            before = await links.sample()
            start_ns = asyncio.get_running_loop().time() * 1e9  # uvloop's and asyncio's clock is the monotonic one
            parts[PUBLISHERS].order(f"go {int(start_ns)}")
            done = await parts[SUBSCRIBERS].wait_for("done", RUN_TIMEOUT_S)
            await parts[PUBLISHERS].wait_for("done", RUN_TIMEOUT_S)
            if parts[SUBSCRIBERS].state["errors"]:
                raise PeerError(f"{setting}: {parts[SUBSCRIBERS].state['errors'][0]}")
            after = await links.sample()
        moved = {name: after[name] - before[name] for name in after}
        return Moved((max(done) - start_ns) / 1e9, moved[PUBLISHERS], moved[SUBSCRIBERS])


def _letters(number: int) -> str:
    """A run's number in letters: a level that looks like an id would put all runs into one family."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
