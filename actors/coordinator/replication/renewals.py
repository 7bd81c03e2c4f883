"""New epochs that this coordinator asks for: for groups that others are to lead, or that it may begin again itself.

An epoch begins once (`cluster.sequencer`, rule 6). Where a group was left, since this disk has refused what others may
have, is too slow, or had no room for the epoch's beginning, nobody leads it until the coordination server has made
another epoch; so that is asked for until it is answered, by whoever can be reached by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Coordination

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
# After so long an epoch is asked for that this coordinator is to lead itself: its disk may have room by then. Each one
# that cannot begin costs the coordination server a commit.
OWN_AFTER_S: Final = 0.2

# Group -> (what the coordination server has, as is known here; what it is to have).
Changes: TypeAlias = Mapping[int, tuple[GroupState, GroupState]]


class Renewals:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        coordination: Coordination,
        open_given: Callable[[Mapping[int, GroupState]], Awaitable[None]],
        left: Callable[[Mapping[int, GroupState]], None],
    ) -> None:
        """`open_given(states)`: these were given to this coordinator, to lead them; `left(states)`: others lead what
        was led here under these."""
        self._name = name
        self._coordination = coordination
        self._open_given = open_given
        self._left = left
        # Groups of which it is not known yet what has become of them: one change is asked for at a time.
        self._groups: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, changes: Changes) -> None:
        """Ask for these; not for those of groups for which something is asked for already. The groups are closed."""
        fresh = {group: change for group, change in changes.items() if group not in self._groups}
        own = {group: change for group, change in fresh.items() if change[1].leader == self._name}
        self._groups.update(fresh)
        self._start({group: change for group, change in fresh.items() if group not in own}, 0.0)
        self._start(own, OWN_AFTER_S)

    def _start(self, changes: Changes, wait_s: float) -> None:
        if changes:
            # A task of its own: what waits for the disk goes on.
            task = asyncio.get_running_loop().create_task(self._renew(changes, wait_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ask for nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _renew(self, changes: Changes, wait_s: float) -> None:
        while changes:
            await asyncio.sleep(wait_s)
            wait_s = RETRY_S
            try:
                held = await self._coordination.change_groups(dict(changes))
            except LexicastError as error:
                log.debug("a new epoch: %s", error)
                continue
            # Who counts has changed meanwhile, by what this coordinator has asked for: nobody else would lead it.
            mine = [group for group in held if group in changes and self._is_mine(held[group], *changes[group])]
            await self._settle(changes, {g: s for g, s in held.items() if g in changes and g not in mine})
            again = {group: (held[group], held[group]._replace(epoch=held[group].epoch + 1)) for group in mine}
            # What the coordination server says nothing of it has lost: it is asked again, for when it knows more.
            changes = {group: change for group, change in changes.items() if group not in held} | again

    def _is_mine(self, held: GroupState, known: GroupState, new: GroupState) -> bool:
        """Whether the epoch that is over is this coordinator's still."""
        return held != new and (held.epoch, held.leader) == (known.epoch, self._name)

    async def _settle(self, changes: Changes, held: Mapping[int, GroupState]) -> None:
        """The groups of `held` have another epoch now: one that was asked for, or one of somebody else."""
        self._groups.difference_update(held)
        given = {g: state for g, state in held.items() if state == changes[g][1] and state.leader == self._name}
        self._left({group: changes[group][0] for group in held if group not in given})
        if given:
            await self._open_given(given)
