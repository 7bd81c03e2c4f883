"""The knobs of a stand-alone DualDB: unit in the name, default and its reason beside each."""

from __future__ import annotations

from dataclasses import dataclass

from lexicast.cluster.errors import ConfigError

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DualOptions:
    """A stand-alone DualDB's knobs. Raises ConfigError."""

    # Address space of the map; sparse, as in StoreOptions.
    map_bytes: int = 64 * GIB

    # Rows of the memory table: 40 bytes each, twice while a full one is written, and once more while it is sorted:
    # 120 MiB at worst. Rows that expire before it is full are never written to a run.
    memory_rows_max: int = 1_000_000

    # Rows of one value of a run: 720 KB, about 1 ms to write. Smaller ones cost more calls a look-up, larger ones hold
    # up a commit for longer.
    segment_rows: int = 16_384

    # Runs of a level that are merged into one of the next: fewer make look-ups cheaper and merges more frequent.
    runs_fanout: int = 4

    # Tombstones (unsubscribed or renewed subscriptions) remembered before a merge of all runs: 48 bytes each.
    tombstones_max: int = 262_144

    # Bytes of the journal: small batches are written there, and moved into LMDB together when it is full. A larger one
    # moves less often, and takes longer to read after a crash: 0.2 s for this much of single operations with short
    # payloads, 0.03 where they are of 1 KB.
    journal_bytes: int = 2 * MIB

    # Bytes kept free on the disk: batches are refused, unsubscribing and expiry go on.
    reserve_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        if (
            min(self.map_bytes, self.memory_rows_max, self.segment_rows, self.tombstones_max, self.journal_bytes) < 1
            or self.runs_fanout < 2
        ):
            raise ConfigError(
                "map_bytes, memory_rows_max, segment_rows, tombstones_max and journal_bytes must be above 0, "
                "runs_fanout at least 2"
            )
        if self.reserve_bytes < 0:
            raise ConfigError(f"reserve_bytes {self.reserve_bytes} must not be negative")
