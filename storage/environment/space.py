"""The space that is left: quota, reserve and the disk.

Publications are accepted while the pages in use and the new ones leave `reserve_bytes` free both inside the quota and
on the disk. LMDB never shrinks its file but reuses freed pages, so pages free inside the file count as free disk,
unless a reader holds an old snapshot: then freed pages wait for it, and only what the file can still grow counts.
Control records may use the reserve: so sessions end, marks are released and expiry runs on a full store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import StoreFullError

from .environment import Environment
from .options import StoreOptions

REFRESH_S: Final = 0.25
# How often slots of killed readers are cleared, and how long a reader may take before its pages count as held.
READERS_S: Final = 2.0
# After the disk or the map has run out although there seemed to be room, publications are refused this long. After one
# was refused space is short for as long.
RAN_OUT_S: Final = 2.0

# Beyond its own pages a block costs an entry in a leaf and copies of the tree's path to it.
_OVERHEAD_PAGES: Final = 2
_PAGE_HEADER_BYTES: Final = 16


class Space:
    """Bytes used and free, measured at each commit; the disk again at most every REFRESH_S."""

    def __init__(self, environment: Environment, options: StoreOptions, clock: Clock) -> None:
        self._environment = environment
        self._directory: Path = environment.directory
        self._clock = clock
        self._page = environment.page_bytes
        self._quota = min(options.quota_bytes, environment.map_bytes)
        self._reserve = options.reserve_bytes
        self._checked = 0.0
        self._ran_out = -RAN_OUT_S
        self._refused = -RAN_OUT_S
        self._readers_checked = 0.0
        self._transaction_before = 0
        # A reader has held an old snapshot for READERS_S or longer: pages freed since cannot be used again.
        self.pinned = False
        self.used = 0
        self.disk_free = 0
        with environment.snapshot() as txn:
            self.measured(environment.used_bytes(txn))

    def measured(self, used_bytes: int) -> None:
        """A transaction has counted the pages in use."""
        self.used = used_bytes
        self._look_at_disk()

    def look_at_readers(self) -> None:
        """Clear slots of killed readers, and see whether a reader holds pages; at most every READERS_S."""
        now = self._clock.monotonic()
        if now - self._readers_checked < READERS_S:
            return
        self._readers_checked = now
        oldest, last = self._environment.oldest_reader()
        self.pinned = oldest is not None and oldest < self._transaction_before
        self._transaction_before = last

    def ran_out(self) -> None:
        """A transaction found no room."""
        self._ran_out = self._clock.monotonic()

    def _look_at_disk(self) -> None:
        found = os.statvfs(self._directory)
        self.disk_free = found.f_bavail * found.f_frsize
        self._checked = self._clock.monotonic()

    def value_bytes(self, size_bytes: int) -> int:
        """Bytes of the pages that a stored value of `size_bytes` fills."""
        return -(-(size_bytes + _PAGE_HEADER_BYTES) // self._page) * self._page

    def needed_bytes(self, size_bytes: int) -> int:
        """Bytes to have free before such a value is stored: its pages, and copies of the tree's above it."""
        return self.value_bytes(size_bytes) + _OVERHEAD_PAGES * self._page

    @property
    def free(self) -> int:
        """Bytes that can still be used, the reserve included; 0 when they have just run out."""
        return 0 if self._has_run_out else self._free()

    @property
    def _has_run_out(self) -> bool:
        return self._clock.monotonic() - self._ran_out < RAN_OUT_S

    def _free(self) -> int:
        file_bytes = self._environment.file_bytes()
        inside = 0 if self.pinned else max(0, file_bytes - self.used)
        return min(self._quota - self.used, self.disk_free + inside, self._environment.map_bytes - file_bytes + inside)

    def room(self) -> bool:
        """Publications are accepted now. Cheap; looks at the disk at most every REFRESH_S."""
        if self._clock.monotonic() - self._checked >= REFRESH_S:
            self._look_at_disk()
        return self.free > self._reserve

    @property
    def is_short(self) -> bool:
        """Publications are refused, or some were a moment ago: large ones are while `room` says that there is some."""
        return self._clock.monotonic() - self._refused < RAN_OUT_S or not self.room()

    def _left_for(self, publications: bool) -> int:
        """Bytes that may be used; control records try their luck also where space has just run out."""
        return self.free - self._reserve if publications else self._free()

    def admit(self, need_bytes: int, publications: bool) -> None:
        """Raise StoreFullError unless `need_bytes` fit, beside the reserve when they are publications'."""
        free = self._left_for(publications)
        if need_bytes <= free:
            return
        self._look_at_disk()
        free = self._left_for(publications)
        if need_bytes > free:
            if publications:
                self._refused = self._clock.monotonic()
            raise StoreFullError(
                f"the store {self._directory} is full: {need_bytes} bytes wanted, {max(free, 0)} free of quota "
                f"{self._quota} and disk, reserve {self._reserve} kept for expiry; publishing resumes when expiry or "
                "retention has freed some: lower retention_s or retention_bytes, raise quota_bytes, or add disk"
            )
