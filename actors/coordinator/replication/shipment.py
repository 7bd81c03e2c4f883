"""What goes to one follower with the next message: the blocks of a turn, and what is committed, gathered by group."""

from __future__ import annotations

from typing import Any

from lexicast.cluster.replication import FollowerProgress


class Shipment:
    """See the module's docstring. Where a member has got is kept in its `FollowerProgress`."""

    def __init__(self) -> None:
        # group -> [epoch, previous, committed, [(last offset, value, checksum)]]
        self._items: dict[int, list[Any]] = {}

    def add(
        self,
        group: int,
        epoch: int,
        progress: FollowerProgress,
        last: int,
        value: bytes,
        committed: int,
        checksum: int | None = None,
    ) -> None:
        """A block, which ends at `last` and is stored as `value`; `checksum`: of the value, where nothing has been on a
        disk since it was made."""
        item = self._items.get(group)
        if item is None:
            item = self._items[group] = [epoch, progress.sent, committed, []]
        item[2] = progress.told = committed
        item[3].append((last, value, checksum))
        progress.sent = last

    def tell(self, group: int, epoch: int, progress: FollowerProgress, committed: int) -> None:
        """What is committed."""
        progress.told = committed
        item = self._items.setdefault(group, [epoch, progress.sent, committed, []])
        item[2] = committed

    def take(self) -> list[tuple[Any, ...]]:
        """All of it, as APPEND has it; nothing is left."""
        items, self._items = self._items, {}
        return [(group, *item) for group, item in items.items()]
