"""The copies of a coordinator's groups, as those see them who lead the groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.leadership import GroupState
from lexicast.storage.log.stored_block import StoredBlock


class GroupCopies(Protocol):
    """What `LedGroups` asks of `copies.Copies`."""

    def may_lead(self, states: Mapping[int, GroupState]) -> list[int]:
        """Those of these groups that are not promised to somebody newer; they are not followed here any more."""
        ...

    def lead(self, states: Mapping[int, GroupState]) -> None:
        """These are led here from now on: their first blocks come with the next `ship`."""

    def close(self, groups: Iterable[int]) -> None:
        """These are not led here any more."""

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        """Blocks that were just sequenced go to followers; those that were encoded for that."""
        ...

    def written(self, blocks: Iterable[Block]) -> None:
        """Blocks of groups that are followed here are durable."""

    def refused(self, led: Sequence[int], followed: Iterable[int]) -> None:
        """The disk had no room for blocks of these groups, which others may have."""

    def resign(self, group: int) -> None:
        """There is no room here: the group is led by another member from now on, if there is one that keeps up."""

    def durable(self, group: int) -> dict[str, int]:
        """Of each follower of a group that is led here the first offset that is not known to be durable there."""
        ...
