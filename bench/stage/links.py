"""The demo's links: one counting TCP proxy each, all in a process of their own, sampled as long as it runs.

Its first line says on which port each link listens, every later one how many bytes each has carried so far (both
ways: acknowledgements, dictionaries and all else that a link costs) and when.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

import uvloop

from .parts import Orders, tell
from .proxy import Proxy

SAMPLE_S = 0.25


def carried(proxies: dict[str, Proxy]) -> dict[str, int]:
    """Bytes of each link so far, both ways."""
    return {name: p.counters.to_server + p.counters.to_client for name, p in proxies.items()}


async def serve(links: dict[str, tuple[str, int]]) -> None:
    """Runs a proxy to each address until the order to finish."""
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    orders = Orders()

    def finish() -> None:
        loop.call_soon_threadsafe(finished.set)

    orders.on_finish = finish
    proxies = {name: Proxy(host, port) for name, (host, port) in links.items()}
    try:
        tell(ports={name: await proxy.start() for name, proxy in proxies.items()})
        while not finished.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), SAMPLE_S)
            tell(at_ns=time.monotonic_ns(), carried=carried(proxies))
    finally:
        for proxy in proxies.values():
            await proxy.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.stage.links NAME=HOST:PORT ...`; started by the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("links", nargs="+", metavar="NAME=HOST:PORT")
    links = {}
    for text in parser.parse_args(argv).links:
        name, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        links[name] = (host, int(port))
    uvloop.run(serve(links))
    return 0


if __name__ == "__main__":
    sys.exit(main())
