"""The store's knobs: unit in the name, default and its reason beside each."""

from __future__ import annotations

from dataclasses import dataclass

from lexicast.cluster.errors import ConfigError

GIB = 1 << 30
MIB = 1 << 20
DAY_S = 86_400

# The part of quota minus reserve that history may fill when `retention_bytes` is None: an eighth is left for the
# tables, the index and whatever arrives between two steps of `Store.reclaim`.
RETENTION_SHARE = 7 / 8


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How much a store may hold, for how long, and how much memory its caches take.

    Raises ConfigError when the values contradict each other.
    """

    # Address space reserved for the LMDB map. A sparse 64 GiB map costs 8 KiB of disk and 0.4 ms to open (measured),
    # and a store never has to be restarted to grow below it. Capped by what the file system and the process allow.
    map_bytes: int = 64 * GIB

    # Bytes of live pages the store may use (log, tables and index together). Below `map_bytes`, so that the quota is
    # what stops publishing, never the map.
    quota_bytes: int = 48 * GIB

    # Bytes kept free, on the disk and inside the quota, from publications: control records (sessions, releases,
    # epochs) and the transactions of expiry still run in it. 256 MiB is some thousands of control commits.
    reserve_bytes: int = 256 * MIB

    # Seconds a publication is kept, its own expiry aside; 0 = for ever (until `retention_bytes`). A week lets a
    # subscriber that was away over a long week-end resume.
    retention_s: float = 7 * DAY_S

    # Bytes of log after which the oldest blocks go; 0 = no limit by size, publishing is refused at the quota instead;
    # None = RETENTION_SHARE of (quota - reserve), so that by default old history goes before publishing stops.
    retention_bytes: int | None = None

    # Seconds after which a producer that sent nothing, and a QoS 2 mark never released, are forgotten. A resend after
    # a longer pause than this may be stored twice; a day is far beyond any client's retry.
    producer_retention_s: float = DAY_S

    # Seconds that a clock which was set forward by more than an hour has to run on before anything is discarded by it;
    # until then time goes on from where it was (`cluster.clock.TrustedTime`). A day is what it may take until somebody
    # has seen the warning in `lexicast status` and set the clock right. 0 = any clock is believed at once.
    clock_confirm_s: float = DAY_S

    # Bytes of one block, its payloads included. A bigger one is the caller's mistake: it would hold up every reader.
    block_bytes_max: int = 16 * MIB

    # Bytes of all blocks of one commit: bounds the dirty pages LMDB holds in memory (its own limit is 512 MiB), beside
    # what waits for the next commit, and how long an acknowledgement waits behind others.
    commit_bytes_max: int = 16 * MIB

    # Entries (one a block and topic) of the index's memory table before it is written behind: 65,536 x 40 bytes, and
    # four times as many where a disk is slow.
    index_entries_max: int = 65_536

    # Bytes of log not yet covered by the index on disk: what has to be looked through again after a crash. 256 MiB is
    # some thousand blocks, of which only the heads are read.
    index_log_bytes_max: int = 256 * MIB

    # Entries of one segment of a run, which is what one step of writing behind or merging writes: 90 KB, under 1 ms of
    # the writer thread. (Once it counted the topics of a step; the name stayed.)
    index_step_topics: int = 2_048

    # Names of topics whose numeric ids are held in memory: 100,000 x about 150 bytes.
    topic_cache_max: int = 100_000

    # Simultaneous read transactions (each 64 bytes in the lock file).
    max_readers: int = 256

    def __post_init__(self) -> None:
        if not 0 < self.quota_bytes <= self.map_bytes:
            raise ConfigError(f"quota_bytes {self.quota_bytes} must be above 0 and at most map_bytes {self.map_bytes}")
        if not 0 <= self.reserve_bytes < self.quota_bytes:
            raise ConfigError(f"reserve_bytes {self.reserve_bytes} must be below quota_bytes {self.quota_bytes}")
        if self.retention_s < 0 or self.producer_retention_s <= 0:
            raise ConfigError("retention_s must not be negative and producer_retention_s must be above 0")
        if self.retention_bytes is not None and self.retention_bytes < 0:
            raise ConfigError(f"retention_bytes {self.retention_bytes} must not be negative (0 = no limit by size)")
        if not 0 < self.block_bytes_max <= self.commit_bytes_max:
            raise ConfigError("block_bytes_max must be above 0 and at most commit_bytes_max")
        if min(self.index_entries_max, self.index_log_bytes_max, self.index_step_topics, self.topic_cache_max) < 1:
            raise ConfigError("index_entries_max, index_log_bytes_max, index_step_topics, topic_cache_max: at least 1")

    @property
    def log_bytes_max(self) -> int:
        """Bytes of log after which the oldest blocks go; 0 = no limit by size."""
        if self.retention_bytes is not None:
            return self.retention_bytes
        return int((self.quota_bytes - self.reserve_bytes) * RETENTION_SHARE)
