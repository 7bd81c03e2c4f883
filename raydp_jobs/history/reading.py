"""Reading the history: Ray tasks on the nodes of the stores, each some slices of the log as Arrow.

1. *Where*: each coordinator says where its store lies, on which node, and how far each group that it leads is
   committed. A group is read from its leader up to there: nothing twice, and nothing that is not committed.
2. *Plan*: a task a store looks at the heads of its blocks and cuts the wanted offsets into slices.
3. *Read*: a task a slice, on the store's node, on half of the node's CPUs at a time: the others are the cluster's.
   Filters on topic, time and position are applied there. A slice becomes one Arrow stream in Ray's object store
   (which spills to disk).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.ray.errors import ray_errors
from lexicast.actors.ray.handles import COORDINATION, find_actor
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.points_in_time import FOREVER_US, Since, Until, parse_since, parse_time
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.names import check_filter, is_wildcard, matches
from lexicast.compression.codecs import PAYLOAD_BYTES_MAX
from lexicast.compression.dictionary import unpack_dictionary
from lexicast.compression.wire import Recoder
from lexicast.storage.log_scanner import Extent, LogScanner

from .columns import BlocksToArrow, Wanted, check_columns, schema_of

# A slice is one Spark partition and one object in Ray's store; a task holds one at a time.
SLICE_RECORDS: Final = 100_000
SLICE_BYTES: Final = 8 << 20
CALL_TIMEOUT_S: Final = 60.0
# Of what reads and computes beside a running cluster: Linux' least. Publishing during a read, over that without, on
# two cores: 0.55 at 10, 0.66 at 19 with two readers at a time, 0.74 to 0.90 with one. The policy SCHED_IDLE in its
# place: 0.81, no better, and the read takes longer.
NICENESS: Final = 19
TOPICS_REMEMBERED: Final = 100_000

Progress = Callable[[int, int, int], None]
"""Called with slices read, slices in all, and rows so far."""


class Place(NamedTuple):
    """A coordinator's store: its folder, its Ray node, and group -> first offset not committed, of groups it leads.

    `payload_bytes_max`: no payload of this cluster is longer, decompressed.
    """

    directory: str
    node: str
    committed: dict[int, int]
    payload_bytes_max: int = PAYLOAD_BYTES_MAX


class Reader(NamedTuple):
    """Who reads, and the rules (an acl file) that say what of the past."""

    user: str
    client_id: str
    rules: str

    def allowed(self) -> Callable[[bytes], bool]:
        """Whether it may read a topic's past. Raises ConfigError."""
        rights = Rights(has_rules=True)
        rights.update(self.rules, 1)
        return rights.client(self.user, self.client_id).may_read_past


class Query(NamedTuple):
    """What is asked for, as tasks get it. `start`: group -> first offset, None: from the beginning of each; `where`: a
    condition, as the user wrote it; `reader`: None: whoever has the cluster's key, whom no rules concern."""

    filter: bytes
    start: dict[int, int] | None
    since_us: int
    until_us: int
    now_us: int
    columns: tuple[str, ...]
    where: str | None = None
    reader: Reader | None = None

    def wanted(self) -> Wanted:
        """The filters, with matching remembered by topic."""
        condition = None if self.where is None else predicate(self.where)
        topic = topic_matcher(self.filter, None if self.reader is None else self.reader.allowed())
        return Wanted(topic, self.since_us, self.until_us, self.now_us, condition)


class Slice(NamedTuple):
    """What one task reads: extents of one store."""

    place: Place
    extents: tuple[Extent, ...]


class Blocks(NamedTuple):
    """The history as it lies in Ray's object store: one Arrow stream (bytes) a slice; rows of each.

    `undecodable`: how many payloads are null because they cannot be decompressed.
    """

    refs: list[Any]
    rows: list[int]
    schema: pa.Schema
    undecodable: int = 0


class Counted(NamedTuple):
    """What a slice holds."""

    rows: int
    undecodable: int


def topic_matcher(filter: bytes, allowed: Callable[[bytes], bool] | None = None) -> Callable[[bytes], bool]:
    """Whether a topic matches `filter` and is `allowed`; answers are remembered."""
    known: dict[bytes, bool] = {}

    def wanted(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            if len(known) >= TOPICS_REMEMBERED:
                known.clear()
            found = known[topic] = matches(filter, topic) and (allowed is None or allowed(topic))
        return found

    return wanted


def places() -> list[Place]:
    """The stores of the cluster in the Ray that this process is connected to. Raises UnavailableError."""
    coordination = find_actor(COORDINATION).handle
    names = get(coordination.status.remote())["coordinators"]
    handles = [find_actor(name).handle for name in names]
    return [Place(*get(ref)) for ref in [handle.place.remote() for handle in handles]]


def get(ref: Any) -> Any:
    """A result, out of Ray's wrappings. Raises what the task raised on purpose, or UnavailableError."""
    with ray_errors("a task"):
        return ray.get(ref, timeout=CALL_TIMEOUT_S)


def make_query(
    filter: str,
    since: Since,
    until: Until,
    columns: Sequence[str] | None,
    expired: bool,
    groups: int,
    where: str | None = None,
) -> Query:
    """Checks what the user gave. Raises TopicError, UsageError."""
    name = filter.encode()
    check_filter(name)
    now_us = SystemClock().time_us()
    exact = None if is_wildcard(name) else topic_group(name, groups)
    parsed = parse_since(since, now_us, exact)
    start = dict(parsed[1]) if parsed is not None and isinstance(parsed[1], Mapping) else None
    since_us = parsed[1] if parsed is not None and isinstance(parsed[1], int) else 0
    until_us = FOREVER_US if until is None else parse_time(until, now_us)
    if exact is not None:
        start = {exact: (start or {}).get(exact, 0)}
    if where is not None:
        predicate(where)
    return Query(name, start, since_us, until_us, 0 if expired else now_us, check_columns(columns), where)


def check_question(
    filter: str, since: Since, until: Until, columns: Sequence[str] | None = None, where: str | None = None
) -> None:
    """What `read` would say of its arguments before it reads anything. Raises TopicError, UsageError."""
    make_query(filter, since, until, columns, expired=False, groups=1, where=where)


def read(
    filter: str = "#",
    since: Since = "beginning",
    until: Until = None,
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    expired: bool = False,
    progress: Progress | None = None,
    reader: Reader | None = None,
) -> Blocks:
    """Read the history into Ray's object store; see `history` for the arguments and what is raised. `reader`: what
    rules keep from it is left out."""
    query, slices = _plan(filter, since, until, columns, expired, where)
    query = query._replace(reader=reader)
    return _read_all(slices, query, progress or _silent)


def planned(filter: str, since: Since, until: Until) -> tuple[int, int]:
    """How many records, and bytes as stored, the blocks hold that a read would look through."""
    _, slices = _plan(filter, since, until, None, False)
    extents = [extent for each in slices for extent in each.extents]
    return sum(extent.records for extent in extents), sum(extent.stored_bytes for extent in extents)


def _plan(
    filter: str, since: Since, until: Until, columns: Sequence[str] | None, expired: bool, where: str | None = None
) -> tuple[Query, list[Slice]]:
    found = places()
    groups = sum(len(place.committed) for place in found)
    query = make_query(filter, since, until, columns, expired, groups, where)
    return query, _planned(found, query)


def _silent(done: int, total: int, rows: int) -> None:
    """Nobody looks."""


def _planned(found: Iterable[Place], query: Query) -> list[Slice]:
    remote = ray.remote(num_cpus=0, max_retries=1)(plan)
    refs = [remote.options(scheduling_strategy=on_node_of(place)).remote(place, query) for place in found]
    return [each for ref in refs for each in get(ref)]


def on_node_of(place: Place) -> NodeAffinitySchedulingStrategy:
    """Where tasks about a store run."""
    return NodeAffinitySchedulingStrategy(place.node, soft=False)


def plan(place: Place, query: Query) -> list[Slice]:
    """The slices of one store; runs on its node."""
    slices: list[Slice] = []
    extents: list[Extent] = []
    with LogScanner(Path(place.directory)) as scanner:
        for group, end in sorted(place.committed.items()):
            if query.start is not None and group not in query.start:
                continue
            first = 0 if query.start is None else query.start[group]
            times = (query.since_us, query.until_us)
            for extent in scanner.extents(group, first, end, *times, SLICE_RECORDS, SLICE_BYTES):
                extents.append(extent)
                if _full(extents):
                    slices.append(Slice(place, tuple(extents)))
                    extents = []
    return [*slices, Slice(place, tuple(extents))] if extents else slices


def _full(extents: Sequence[Extent]) -> bool:
    return (
        sum(extent.records for extent in extents) >= SLICE_RECORDS
        or sum(extent.stored_bytes for extent in extents) >= SLICE_BYTES
    )


def _read_all(slices: Sequence[Slice], query: Query, progress: Progress) -> Blocks:
    """Every slice, on each node so many at a time as it has readers."""
    remote: Any = ray.remote(num_cpus=0, num_returns=2, max_retries=3)(read_slice)
    readers = readers_by_node()
    waiting: dict[str, deque[int]] = {}
    for at, each in enumerate(slices):
        waiting.setdefault(each.place.node, deque()).append(at)
    data: dict[int, Any] = {}
    counted: dict[Any, int] = {}
    found = [Counted(0, 0)] * len(slices)

    def submit(node: str) -> None:
        if waiting[node]:
            at = waiting[node].popleft()
            each = slices[at]
            bare = Slice(each.place._replace(committed={}), each.extents)
            data[at], count = remote.options(scheduling_strategy=on_node_of(each.place)).remote(bare, query)
            counted[count] = at

    for node in waiting:
        for _ in range(readers.get(node, 1)):
            submit(node)
    done = 0
    while counted:
        ready, _ = ray.wait(list(counted), num_returns=1)
        for count in ready:
            at = counted.pop(count)
            found[at] = get(count)
            done += 1
            submit(slices[at].place.node)
            progress(done, len(slices), sum([each.rows for each in found]))
    kept = [at for at in range(len(slices)) if found[at].rows]
    undecodable = sum([each.undecodable for each in found])
    return Blocks([data[at] for at in kept], [found[at].rows for at in kept], schema_of(query.columns), undecodable)


def readers_by_node() -> dict[str, int]:
    """How many slices are read at a time on each node: half of its CPUs, the others are the cluster's."""
    list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    alive = [node for node in list_nodes() if node["Alive"]]
    return {node["NodeID"]: max(1, int(node["Resources"].get("CPU", 1)) // 2) for node in alive}


def read_slice(each: Slice, query: Query) -> tuple[bytes, Counted]:
    """One slice as an Arrow stream, and what it holds; runs on the store's node, behind the cluster's actors."""
    yield_cpu()
    wanted = query.wanted()
    recoder = Recoder(payload_bytes_max=each.place.payload_bytes_max)
    sink = pa.BufferOutputStream()
    rows = 0
    with LogScanner(Path(each.place.directory)) as scanner:
        decoder = BlocksToArrow(query.columns, wanted, recoder)
        with pa.ipc.new_stream(sink, decoder.schema) as writer:
            for extent in each.extents:
                blocks = scanner.blocks(
                    extent.group, extent.first, extent.end, query.since_us, query.until_us, wanted.topic
                )
                for batch in decoder.batches(_held(blocks, scanner, recoder), extent.first, extent.end):
                    rows += batch.num_rows
                    writer.write_batch(batch)
            for batch in decoder.rest():
                rows += batch.num_rows
                writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), Counted(rows, decoder.undecodable)


def warm_up() -> list[Any]:
    """Have Ray start the processes that are going to read, which load code for seconds; what to wait for."""
    remote = ray.remote(num_cpus=0)(yield_cpu)
    return [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)).remote()
        for node, readers in readers_by_node().items()
        for _ in range(readers)
    ]


def yield_all_spark() -> None:
    """Let Spark's processes on every node (Java workers of Ray) run only with what CPU the cluster leaves."""
    remote = ray.remote(num_cpus=0)(yield_spark)
    refs = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)).remote()
        for node in readers_by_node()
    ]
    ray.wait(refs, num_returns=len(refs), timeout=CALL_TIMEOUT_S)


def yield_spark() -> None:
    """The same for this node."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "java" and "raydp" in " ".join(process.info["cmdline"] or ()):
            with suppress(OSError):  # it has just ended
                yield_cpu(process.pid)


def yield_cpu(process: int | None = None) -> None:
    """Let a process (None: this one) run only with what CPU the cluster leaves, from now on: each of its threads."""
    for thread in Path(f"/proc/{process or os.getpid()}/task").iterdir():
        with suppress(OSError):  # it has just ended, or it is another user's
            if os.getpriority(os.PRIO_PROCESS, int(thread.name)) < NICENESS:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)


def _held(blocks: Iterable[Any], scanner: LogScanner, recoder: Recoder) -> Iterable[Any]:
    """The blocks, each with its dictionaries held: those that are there and sound."""
    missing: set[int] = set()
    for block in blocks:
        for id in block.meta.dictionaries:
            if id not in recoder and id not in missing and not _hold(id, block.group, scanner, recoder):
                missing.add(id)
        yield block


def _hold(id: int, group: int, scanner: LogScanner, recoder: Recoder) -> bool:
    packed = scanner.dictionary(group, id)
    if packed is None:
        return False
    try:
        recoder.add(unpack_dictionary(packed))
    except DictionaryError:
        return False
    return True
