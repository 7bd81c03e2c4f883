"""Links that are measured or narrow: one TCP proxy each, all in a process of their own, sampled as long as it runs.

Run as a module it is that process. Its first line says on which port each link listens, every later one how many bytes
each has carried so far (both ways: acknowledgements, dictionaries and all else that a link costs) and when. With
--bytes-per-s each connection is limited to that rate in each direction. `Links` is the driver's side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import uvloop

from .parts import Orders, Part, Stage, tell_driver
from .proxy import QUEUE_BYTES_MAX, Proxy

MODULE: Final = "lexicast.bench.stage.links"
SAMPLE_S: Final = 0.25
NARROW_QUEUE_BYTES: Final = 64 * 1024
"""A narrow link's queue: half a second at 1 Mbit/s, as modems have; the kernel's and the proxy's usual 4 MiB are 30."""


@dataclass
class Carried:
    """What the links carried: bytes of each at each of these times (monotonic ns)."""

    at_ns: list[int] = field(default_factory=list)
    bytes: dict[str, list[int]] = field(default_factory=dict)

    def add(self, told: Mapping[str, Any]) -> None:
        """One sample, as the links' process tells it."""
        if "carried" in told:
            self.at_ns.append(told["at_ns"])
            for link, carried in told["carried"].items():
                self.bytes.setdefault(link, []).append(carried)

    def now(self, link: str) -> int:
        """The newest figure of a link."""
        return self.bytes[link][-1] if self.bytes.get(link) else 0


class Links:
    """The driver's side: the port of each link, and what they have carried."""

    def __init__(self, part: Part, carried: Carried, ports: dict[str, int]) -> None:
        self.part = part
        self.carried = carried
        self.ports = ports

    @classmethod
    async def open(
        cls, stage: Stage, addresses: Mapping[str, str], *, name: str = "links", bytes_per_s: float | None = None
    ) -> Self:
        """Links to these addresses (HOST:PORT); with `bytes_per_s` narrow ones. Raises `PeerError`."""
        arguments = [f"{link}={address}" for link, address in addresses.items()]
        if bytes_per_s is not None:
            arguments += ["--bytes-per-s", str(bytes_per_s)]
        carried = Carried()
        part = stage.part(name, MODULE, arguments, carried.add)
        await part.start()
        return cls(part, carried, await part.wait_for("ports"))

    async def sample(self) -> dict[str, int]:
        """Bytes of each link, as counted from now on. Raises `PeerError`."""
        self.part.state.pop("carried", None)
        told: dict[str, int] = await self.part.wait_for("carried")
        return told


def link_bytes(proxies: Mapping[str, Proxy]) -> dict[str, int]:
    """Bytes of each link so far, both ways."""
    return {name: p.counters.to_server + p.counters.to_client for name, p in proxies.items()}


async def serve(links: Mapping[str, tuple[str, int]], bytes_per_s: float | None) -> None:
    """Runs a proxy to each address until the order to finish."""
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    Orders(lambda: loop.call_soon_threadsafe(finished.set))
    queue_bytes = QUEUE_BYTES_MAX if bytes_per_s is None else NARROW_QUEUE_BYTES
    proxies = {
        name: Proxy(host, port, bytes_per_s=bytes_per_s, queue_bytes_max=queue_bytes)
        for name, (host, port) in links.items()
    }
    try:
        tell_driver(ports={name: await proxy.start() for name, proxy in proxies.items()})
        while not finished.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), SAMPLE_S)
            tell_driver(at_ns=time.monotonic_ns(), carried=link_bytes(proxies))
    finally:
        for proxy in proxies.values():
            await proxy.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.stage.links NAME=HOST:PORT ...`; started by drivers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("links", nargs="+", metavar="NAME=HOST:PORT")
    parser.add_argument("--bytes-per-s", type=float, help="rate of each direction of each connection")
    options = parser.parse_args(argv)
    links = {}
    for text in options.links:
        name, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        links[name] = (host, int(port))
    uvloop.run(serve(links, options.bytes_per_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
