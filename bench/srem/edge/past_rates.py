"""Part `past`: a condition on the stored past, asked at the broker, beside sending all of it and filtering there.

A coordinator with a store of flights and a broker's engine, linked. The past is asked for page by page, as a Python
client's `history(where=)` does.

    history_where_s           messages looked at by a second of the broker's CPU, of a condition that few match: pages
                              off the link, decompressed, decoded, asked, what holds made into blocks for the client
    history_where_wide_s      the same of one that most match; history_where_text_s: of one of texts and LIKE, which
                              reads every message by itself
    history_where_vs_client   CPU of broker and client together, by sending everything to a client that filters with
                              json.loads and a Python expression: how many times as much that takes
    history_where_bytes       bytes to the client, as a part of those

A rate is the best of the rounds: other processes only ever slow one down. Every answer is held against the client's.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.python_clients.history import HISTORY_BYTES_MAX
from lexicast.actors.broker.python_clients.past_requests import PastRequests
from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.compression.wire import Recoder

from ...data.flights import prepare_flights
from ...report import DriverReport, Steps
from .actor_gc import collecting_as_actors_do
from .past_cluster import CoordinatorThread, linked_engine, publish_all

MESSAGES: Final = 100_000
QUICK_MESSAGES: Final = 5_000
FILTER: Final = b"flights/#"


Holds: TypeAlias = Callable[[dict[str, Any]], bool]


class PastCase(NamedTuple):
    """A condition, and what a client asks in its place."""

    key: str
    where: str
    holds: Holds


CASES: Final = (
    PastCase(
        "history_where",
        "dep_delay_min > 60 AND carrier IN ('UA', 'AA')",
        lambda event: event.get("dep_delay_min", 0) > 60 and event["carrier"] in ("UA", "AA"),
    ),
    PastCase("history_where_wide", "distance_mi > 300", lambda event: event["distance_mi"] > 300),
    PastCase(
        "history_where_text",
        "tail LIKE 'N1%' AND dest <> origin",
        lambda event: (event["tail"] or "").startswith("N1") and event["dest"] != event["origin"],
    ),
)


class PastAnswer(NamedTuple):
    """What a client has of the past in the end. `broker_s`, `client_s`: seconds of CPU."""

    payloads: list[bytes]
    broker_s: float
    client_s: float
    bytes: int


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 1 + len(CASES)


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    messages = QUICK_MESSAGES if report.options.quick else MESSAGES
    progress.step(f"past: {messages:,} flights are stored")
    with tempfile.TemporaryDirectory(prefix="lexicast-srem-") as name:
        folder = Path(name)
        events = [e for e in prepare_flights(messages, folder / "flights").events if e.topic.startswith("flights/")]
        with CoordinatorThread(folder) as coordinator:
            asyncio.run(_measure(report, progress, coordinator, events))


async def _measure(report: DriverReport, progress: Steps, coordinator: CoordinatorThread, events: list[Any]) -> None:
    engine = await linked_engine(coordinator)
    rows = []
    try:
        await publish_all(engine, events)
        with collecting_as_actors_do():
            for case in CASES:
                progress.step(f"past: {case.where}")
                rows.append(await _case(report, engine, case, len(events)))
    finally:
        await engine.close()
    columns = ["", "match", "looked at/s", "times the CPU without", "bytes"]
    report.table(f"{len(events):,} flights out of the store", columns, rows)


async def _case(report: DriverReport, engine: BrokerEngine, case: PastCase, count: int) -> list[str]:
    asked, filtered = list[PastAnswer](), list[PastAnswer]()
    for _ in range(report.options.rounds):
        asked.append(await _history(engine, case.where, None))
        filtered.append(await _history(engine, None, case.holds))
    if any([sorted(answer.payloads) != sorted(filtered[0].payloads) for answer in asked]):
        report.problem(f"past: {case.where}: broker and client do not agree")
    rate = count / min([answer.broker_s for answer in asked])
    report.figure(f"{case.key}_s", rate)
    ours, theirs = (min([answer.broker_s + answer.client_s for answer in some]) for some in (asked, filtered))
    report.figure(f"{case.key}_vs_client", theirs / ours)
    report.figure(f"{case.key}_bytes", asked[0].bytes / filtered[0].bytes)
    report.samples[case.key] = {
        "broker_s": [answer.broker_s for answer in asked],
        "filtering_broker_s": [answer.broker_s for answer in filtered],
        "filtering_client_s": [answer.client_s for answer in filtered],
    }
    matching = len(asked[0].payloads) / count
    share = asked[0].bytes / filtered[0].bytes
    return [case.where, f"{matching:.1%}", f"{rate:,.0f}", f"{theirs / ours:.1f}", f"{share:.1%}"]


async def _history(
    engine: BrokerEngine, where: str | None, holds: Callable[[dict[str, Any]], bool] | None
) -> PastAnswer:
    """All pages; `holds`: what the client asks of each message."""
    past, recoder = PastRequests(engine), Recoder()
    payloads, client_s, size = list[bytes](), 0.0, 0
    cursor: dict[int, int] | None = None
    began = time.thread_time()
    while True:
        page = await past.history((FILTER,), None, FOREVER_US, cursor, HISTORY_BYTES_MAX, where)
        packed = msgpack.packb(page["blocks"])
        size += len(packed)
        turn = time.thread_time()
        payloads += _client(recoder, packed, holds)
        client_s += time.thread_time() - turn
        cursor = page["cursor"]
        if page["done"]:
            return PastAnswer(payloads, time.thread_time() - began - client_s, client_s, size)


def _client(recoder: Recoder, packed: bytes, holds: Holds | None) -> list[bytes]:
    """The payloads of a page, as its client has them."""
    found: list[bytes] = []
    for block in map(Block.from_wire, msgpack.unpackb(packed, use_list=False)):
        if block.kind == PUBLICATIONS:
            stored = [recoder.to_raw(r.encoding, r.dictionary, r.payload) for r in block.records()]
            found += [payload for payload in stored if holds is None or holds(json.loads(payload))]
    return found
