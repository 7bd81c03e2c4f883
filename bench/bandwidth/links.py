"""The links of the bandwidth driver: two proxies (publishers' and subscribers'), each limiting every connection.

Started by `bandwidth`. Its first line tells the ports, every later one the bytes carried so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict

import uvloop

from ..stage.parts import Orders, tell
from ..stage.proxy import Proxy

SAMPLE_S = 0.1
QUEUE_BYTES = 64 * 1024
"""A link's queue: half a second at 1 Mbit/s, as modems have; the kernel's and the proxy's usual 4 MiB are 30."""


async def serve(host: str, port: int, bytes_per_s: float) -> None:
    """Runs both proxies until the order to finish."""
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    orders = Orders()

    def finish() -> None:
        loop.call_soon_threadsafe(finished.set)

    orders.on_finish = finish
    names = ("publishers", "subscribers")
    proxies = {name: Proxy(host, port, bytes_per_s=bytes_per_s, queue_bytes_max=QUEUE_BYTES) for name in names}
    try:
        tell(ports={name: await proxy.start() for name, proxy in proxies.items()})
        while not finished.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), SAMPLE_S)
            tell(carried={name: asdict(proxy.counters) for name, proxy in proxies.items()})
    finally:
        for proxy in proxies.values():
            await proxy.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.bandwidth.links`; started by `bandwidth`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--bytes-per-s", type=float, required=True)
    options = parser.parse_args(argv)
    host, _, port = options.to.rpartition(":")
    uvloop.run(serve(host, int(port), options.bytes_per_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
