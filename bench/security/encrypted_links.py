"""What encrypted links cost: the loads of `bench.fanout` and `bench.fanin` with all links encrypted and with none.

    links_fanout_ratio    the least, over the loads of fan-out, of deliveries/s with encrypted links over those without
    links_fanin_ratio     the same of fan-in
    links_seal_MB_s       what a core seals, and what it opens, of records as a full link has them
    links_open_MB_s
    links_write_us        what a small write (200 B) takes, sealed and opened

Two clusters at the same time, in turns, each with one broker and one coordinator: what is published crosses a link, and
what is delivered another way of it. Between processes of one machine links are plain unless `security.links` says so;
here it does, so what is measured is what a link across machines costs beside the network.
"""

from __future__ import annotations

import os
import time
from typing import Final

from lexicast.cluster.protocol.sealed_records import RECORD_BYTES_MAX, Opener, Sealer

from ..report import DriverReport
from .loads import measure_beside

SMALL_BYTES: Final = 200
LARGE_BYTES: Final = 4 * RECORD_BYTES_MAX
TIMED_S: Final = 0.3
CONFIG: Final = '[security]\nlinks = "encrypted"\n'


def measure_encrypted_links(report: DriverReport) -> None:
    """Everything of this part; see `loads.measure_beside`."""
    sealing_s, opening_s = _timed(LARGE_BYTES)
    report.figure("links_seal_MB_s", LARGE_BYTES / sealing_s / 1e6)
    report.figure("links_open_MB_s", LARGE_BYTES / opening_s / 1e6)
    report.figure("links_write_us", sum(_timed(SMALL_BYTES)) * 1e6)
    measure_beside(report, "links", "encrypted", lambda folder: CONFIG)


def _timed(size: int) -> tuple[float, float]:
    """CPU seconds of a write of so many bytes, sealed and opened."""
    secret, data = os.urandom(32), os.urandom(size)
    sealer, opener = Sealer(secret), Opener(secret)
    sealing_s = opening_s = 0.0
    count = 0
    while sealing_s + opening_s < TIMED_S:
        began_s = time.thread_time()
        sealed = [sealer.seal(data) for _ in range(8)]
        between_s = time.thread_time()
        for each in sealed:
            opener.open(each)
        opening_s += time.thread_time() - between_s
        sealing_s += between_s - began_s
        count += len(sealed)
    return sealing_s / count, opening_s / count
