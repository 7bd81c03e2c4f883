"""The bytes of a coordinator's log by kind: where the price of a telemetry message goes.

Measured beside the owner, from the store itself: the pages that the log's tree takes on disk, and every block in them.
A block's fixed costs (key, head, lengths and checksums, meta) are shared by its records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.actors.launch.store_check import COORDINATORS
from lexicast.cluster.blocks import CONTROL, Block
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.records import unpack_record
from lexicast.storage.environment.read_only import ReadOnlyStore
from lexicast.storage.file.keys import log_key, parse_log_key
from lexicast.storage.log.block_format import block_of, verified_head
from lexicast.storage.maintenance import directory as maintenance

TELEMETRY: Final = b"/telemetry"
PAYLOAD, META, SESSIONS, OTHER = "telemetry payload", "telemetry meta", "session control", "other"

# Of a row in a leaf page of LMDB: its pointer and its node's header.
_NODE_BYTES: Final = 2 + 8
_ROWS_A_STEP: Final = 2_000


class LogBytes(NamedTuple):
    """Bytes of all coordinators' logs: pages on disk, and what of them is which kind; `store`: all tables' pages."""

    log: int
    store: int
    kinds: dict[str, float]
    records: dict[str, int]

    def since(self, before: LogBytes) -> LogBytes:
        """What has come since `before`."""
        kinds = {kind: size - before.kinds.get(kind, 0) for kind, size in self.kinds.items()}
        records = {kind: count - before.records.get(kind, 0) for kind, count in self.records.items()}
        return LogBytes(self.log - before.log, self.store - before.store, kinds, records)

    def parts(self) -> dict[str, float]:
        """The log's bytes in four parts whose sum it is; what is in no record (pages' slack, the tree) is in OTHER."""
        parts = {kind: self.kinds.get(kind, 0.0) for kind in (PAYLOAD, META)}
        parts[SESSIONS] = sum([size for kind, size in self.kinds.items() if kind.startswith("Session")])
        return parts | {OTHER: self.log - sum(parts.values())}


def measure_log(data_dir: Path) -> LogBytes:
    """The logs of all coordinators that keep their stores below `data_dir`. Raises UnavailableError, StoreError."""
    directories = sorted(data_dir.glob(COORDINATORS))
    if not directories:
        raise UnavailableError(f"{data_dir} holds no coordinator's store")
    log = store = 0
    kinds: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for directory in directories:
        tables = {table.name: table.bytes for table in maintenance.stats(directory).tables}
        log += tables["log"]
        store += sum(tables.values())
        for row_bytes, block in _blocks(directory):
            for kind, size in _kinds(row_bytes, block):
                kinds[kind] += size  # type: ignore[assignment]  # typeshed's Counter counts whole things
                records[kind] += 1
    return LogBytes(log, store, dict(kinds), dict(records))


def _blocks(directory: Path) -> Iterator[tuple[int, Block]]:
    """(bytes of its row, block) of each block of a log, in short transactions: the owner goes on writing."""
    after: bytes | None = log_key(0, 0)
    with closing(ReadOnlyStore(directory)) as store:
        store.lmdb.set_mapsize(0)  # the owner's
        while after is not None:
            found: list[tuple[int, Block]] = []
            with store.begin() as txn, txn.cursor(store.databases.log) as cursor:
                there = cursor.set_range(after)
                while there and len(found) < _ROWS_A_STEP:
                    key, value = bytes(cursor.key()), cursor.value()
                    block = block_of(value, verified_head(value, *parse_log_key(key)))
                    found.append((_NODE_BYTES + len(key) + len(value), block))
                    after = key + b"\0"
                    there = cursor.next()
                if not there:
                    after = None
            yield from found


def _kinds(row_bytes: int, block: Block) -> Iterator[tuple[str, float]]:
    """(kind, bytes) of each record of a block; of telemetry two, its payload and its share of everything else."""
    share = (row_bytes - len(block.body)) / block.count
    if block.kind == CONTROL:
        for payload in block.payloads():
            yield type(unpack_record(payload)).__name__, len(payload) + share
        return
    for record in block.records():
        if record.topic.endswith(TELEMETRY):
            yield PAYLOAD, len(record.payload)
            yield META, share
        else:
            yield _publication(record.topic), len(record.payload) + share


def _publication(topic: bytes) -> str:
    """What a publication beside telemetry is, by its topic's last level, or its first where that begins with `$`."""
    levels = topic.decode().split("/")
    return levels[0] if levels[0].startswith("$") else levels[-1]
