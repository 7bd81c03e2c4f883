"""The members of shares at a broker: joined at the coordinators, dealt records, which they tell done.

A member is joined at each coordinator that leads a group its filter concerns, again whenever that coordinator's link
begins or another one leads; it brings along what it has not done yet. What members have done is told once a turn, and
again where a link broke before it was answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from lexicast.cluster.errors import LedElsewhereError, UnavailableError

from ..coordinators import Coordinators
from ..pipelines.pipeline import Pipeline
from .dealt_blocks import DealtPart, Same, Viewing, dealt_parts

log = logging.getLogger(__name__)

AGAIN_S = 0.05
# Members that have left, of which a coordinator that is not linked is still to be told what they had done: of more it
# is not told, and deals that again.
LEFT_MAX = 1_000
# After a coordinator could not take a member that it is to have.
JOIN_AGAIN_S = 1.0

# group -> offsets.
Records: TypeAlias = Mapping[int, Collection[int]]


class ShareMember(Protocol):
    """Who is dealt records."""

    def take_dealt(self, parts: list[DealtPart]) -> None:
        """These are its to have done."""

    def held(self) -> dict[int, list[int]]:
        """What it has been dealt and has not told done."""
        ...


class ShareKey(NamedTuple):
    """A member: the share's name and filter, and the member's own name, which no other one of this broker has."""

    share: str
    filter: bytes
    member: str


class _Joined(NamedTuple):
    member: ShareMember
    window: int
    exact: bool


class SharedMembers:
    """See the module's docstring."""

    def __init__(self, coordinators: Coordinators, request_timeout_s: float, viewing: Viewing, same: Same) -> None:
        """`same`: of what was delivered lately, since most of what is dealt live was: it is not unpacked again."""
        self._coordinators = coordinators
        self._viewing = viewing
        self._same = same
        self._timeout_s = request_timeout_s
        self._members: dict[ShareKey, _Joined] = {}
        self._done: dict[ShareKey, dict[int, list[int]]] = {}
        # Members that have left but for what they have yet to tell done.
        self._resting: set[ShareKey] = set()
        self._telling = False
        self._names = 0

    def __len__(self) -> int:
        return len(self._members)

    def member_name(self, client_id: str) -> str:
        """A name for a member of this client."""
        self._names += 1
        return f"{client_id}\0{self._names}"

    async def join(
        self,
        key: ShareKey,
        member: ShareMember,
        window: int,
        since: Mapping[int, int] | None = None,
        exact: bool = False,
    ) -> None:
        """Have the member be dealt records, `window` at most that are not done; returns once it is placed in all groups
        that its filter concerns. `since`: where the share begins if it is new; None: now. `exact`: it is
        sent with QoS 2 what was published so.

        Raises LexicastError, TimeoutError; it has left then.
        """
        self._members[key] = _Joined(member, window, exact)
        lacking = set(self._coordinators.groups_of_all([key.filter]))
        try:
            async with asyncio.timeout(self._timeout_s):
                while lacking and key in self._members:
                    for pipeline in list(self._coordinators.by_leader(lacking)):
                        lacking -= await self._joined(pipeline, key, since)
                    if lacking:
                        await asyncio.sleep(AGAIN_S)
        except BaseException:
            self.leave(key)
            raise

    async def _joined(self, pipeline: Pipeline, key: ShareKey, since: Mapping[int, int] | None) -> set[int]:
        if key not in self._members:
            return set()
        begin = None if since is None else dict(since)
        held = self._held(key, pipeline)
        try:
            _, window, exact = self._members[key]
            answer = await pipeline.request("share_join", *key, window, begin, held, exact)
        except (UnavailableError, LedElsewhereError):
            return set()
        return set(answer["groups"])

    def _held(self, key: ShareKey, pipeline: Pipeline) -> dict[int, list[int]]:
        """What it has of the groups of one coordinator: others are told their own."""
        held = {group: [*offsets] for group, offsets in self._members[key].member.held().items()}
        for group, offsets in self._done.get(key, {}).items():
            held.setdefault(group, []).extend(offsets)
        return {group: held[group] for group in self._coordinators.by_leader(held).get(pipeline, ())}

    def resumed(self, pipeline: Pipeline) -> None:
        """A coordinator's link begins, or it leads groups that others led."""
        for key in list(self._members):
            self._join_again(pipeline, key)
        self._tell_soon()

    def _join_again(self, pipeline: Pipeline, key: ShareKey) -> None:
        """Until the coordinator has the member: it may, just begun, not be able to write yet, and else nothing of what
        it leads would ever be dealt to it. Where the link ends `resumed` comes again."""
        joined, link = self._members.get(key), pipeline.link
        concerned = self._coordinators.groups_of_all([key.filter])
        if joined is None or link is None or pipeline not in self._coordinators.by_leader(concerned):
            return

        def again() -> None:
            if pipeline.link is link and not link.closed:
                self._join_again(pipeline, key)

        def done(error: Exception | None, _: Any) -> None:
            if error is not None and not link.closed:
                log.info("%s is joined again at %s: %s", key, pipeline.member.name, error)
                asyncio.get_running_loop().call_later(JOIN_AGAIN_S, again)

        held = self._held(key, pipeline)
        pipeline.call(done, "share_join", *key, joined.window, None, held, joined.exact)

    def leave(self, key: ShareKey, kept: Records | None = None) -> None:
        """A member goes: what it has not done is dealt to others, but for `kept`, which it will tell done."""
        if self._members.pop(key, None) is None and kept is None:
            return
        self._tell()
        if kept:
            self._resting.add(key)
        else:
            self._resting.discard(key)
        self._tell_left(key, kept or {})

    def _tell_left(self, key: ShareKey, kept: Records) -> None:
        """Coordinators that lead nothing of the share now may have led it, and may again: they have the member too."""
        for pipeline in list(self._coordinators.pipelines.values()):
            pipeline.call(_ignore, "share_leave", *key, _listed(kept))

    def end_rest(self, key: ShareKey) -> None:
        """A member that had left but for some is gone altogether."""
        self.leave(key, {})

    # -- records

    def dealt(self, share: str, filter: bytes, rows: Iterable[Any]) -> None:
        """DEAL arrived; of a member that has left it is dealt to others, once the coordinator has heard of that. Raises
        PeerError."""
        for member, parts in dealt_parts(rows, self._viewing, self._same).items():
            key = ShareKey(share, filter, member)
            joined = self._members.get(key)
            if joined is not None:
                joined.member.take_dealt(parts)
            elif key not in self._resting:
                self._tell_left(key, {})

    def done(self, key: ShareKey, group: int, offsets: Iterable[int]) -> None:
        """A member has done with these."""
        groups = self._done.get(key)
        if groups is None:
            groups = self._done[key] = {}
        known = groups.get(group)
        if known is None:
            groups[group] = [*offsets]
        else:
            known += offsets
        if not self._telling:
            self._tell_soon()

    def undeliverable(self, key: ShareKey, part: DealtPart) -> None:
        """A defect, here or in whoever made the block, keeps it from a member, as it would from any other: it is done
        with, or it would be dealt for ever. Call it where the exception is handled."""
        block = part.dealt.block
        log.exception("group %d offset %d: a block could not be delivered to a share", block.group, block.first)
        self.done(key, block.group, part.offsets())

    def _tell_soon(self) -> None:
        if self._done and not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        """What cannot be told now waits for a link."""
        self._telling = False
        told, self._done = self._done, {}
        rows: dict[Pipeline, list[tuple[ShareKey, dict[int, list[int]]]]] = {}
        for key, done in told.items():
            for pipeline, groups in self._coordinators.by_leader(done).items():
                rows.setdefault(pipeline, []).append((key, {group: done.pop(group) for group in groups}))
            if done:  # of groups that nobody leads now
                self._tell_again(key, done)
        for pipeline, some in rows.items():
            pipeline.call(self._told(some), "share_told", [(*key, _listed(done)) for key, done in some])

    def _told(self, rows: list[tuple[ShareKey, dict[int, list[int]]]]) -> Callable[[Exception | None, Any], None]:
        def done(error: Exception | None, _: Any) -> None:
            if isinstance(error, UnavailableError):
                for key, groups in rows:
                    self._tell_again(key, groups)

        return done

    def _tell_again(self, key: ShareKey, done: Mapping[int, Iterable[int]]) -> None:
        """Once a coordinator that leads these groups is linked."""
        if key in self._members or len(self._done) < LEFT_MAX:
            for group, offsets in done.items():
                self._done.setdefault(key, {}).setdefault(group, []).extend(offsets)


def _listed(records: Records) -> dict[int, list[int]]:
    return {group: sorted(offsets) for group, offsets in records.items()}


def _ignore(error: Exception | None, _: Any) -> None:
    """A link that ends is begun anew, with all members."""
