"""Breaks made on purpose: what a cluster must not do, done. The stories have to notice each of them.

Each is a small substitution from outside, in the place of a part or of a way to the disk; the product knows nothing of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.replication import FollowerProgress, Phase
from lexicast.cluster.shares import dealing as dealing_module
from lexicast.cluster.shares.choices import TopicChoices
from lexicast.cluster.shares.dealing import Deal, Share
from lexicast.cluster.shares.pieces import DealtMember, MemberKey
from lexicast.cluster.shares.places import SharePlace
from lexicast.cluster.skipcloud.circuit import Circuit, Segment
from lexicast.storage.log.stored_block import StoredBlock

from ...broker.shares.shared_members import SharedMembers
from ...coordinator import server as server_module
from ...coordinator.matching.asked_blocks import AskedBlock
from ...coordinator.replication import copies as copies_module
from ...coordinator.replication.copies import Copies
from ...coordinator.replication.follower_link import Led
from ...coordinator.replication.followers import Followers
from ...coordinator.replication.following import Following
from ...coordinator.shares import led_shares as led_shares_module
from ...link import circuit_link as circuit_link_module
from ...link.link import Link
from .disks import Gate
from .scene import CONTENT_FROM, SHARES_FROM


@dataclass(frozen=True)
class Break:
    """`substitutes`: attributes of modules (module, name, value); `gate`: what processes reach their stores by;
    `first`: it can be noticed by stories from this one on."""

    name: str
    what: str
    substitutes: tuple[tuple[Any, str, Any], ...] = ()
    gate: type[Gate] = Gate
    first: int = 0


class HastyFollowers(Followers):
    """Counts what was sent to a follower as if it were on its disk."""

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        stored = super().ship(blocks)
        for block in blocks:
            led = self.groups.get(block.group)
            for name, progress in led.members.items() if led is not None else ():
                if progress.phase is Phase.LIVE:
                    self.sequencer.durable(name, block.group, block.last)
        return stored


class CarelessFollowing(Following):
    """Takes what any leader sends, however old its epoch, as long as it fits."""

    def _promised(self, group: int) -> int:
        return 0

    async def _follow(self, link: Link, epochs: Mapping[int, int]) -> dict[int, tuple[Any, ...]]:
        for group in epochs:
            if group in self._groups:
                self._groups[group].epoch = 0
        return await super()._follow(link, epochs)

    def _append(self, link: Link, items: Iterable[Any]) -> None:
        items = list(items)
        for group, epoch, previous, _, _ in items:
            known = self._groups.get(group)
            if known is not None and known.last == previous:
                known.epoch, known.taking = epoch, True
                self._leaders[group] = link
        super()._append(link, items)


class HastyGate(Gate):
    """Lets the tables follow from everything that is written, committed or not."""

    def commit(self, blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
        super().commit(blocks, None)


class ForgetfulGate(Gate):
    """Opens a store without what it has promised."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.store.forget_promises()


class EagerFollowers(Followers):
    """Counts a member as soon as it is served."""

    def _is_ready(self, led: Led, name: str, progress: FollowerProgress, committed: int) -> bool:
        return name not in led.in_sync and name not in led.joining and progress.phase is not Phase.ASKED


class TalkativeCopies(Copies):
    """Shows brokers what was sequenced before anybody has it on disk."""

    def ship(self, blocks: Sequence[Block]) -> list[StoredBlock]:
        stored = super().ship(blocks)
        for block in blocks:
            if block.kind == PUBLICATIONS and block.highest_qos:
                self._led.routing.offer(block)
        self._led.routing.flush()
        return stored


class HastyCircuit(Circuit):
    """Takes what comes, whether what was sent before it has come or not."""

    def received(self, segment: Segment, now_s: float) -> bytes | None:
        self._taken = max(self._taken, segment.number - 1)
        return super().received(segment, now_s)


class ForgetfulShare(Share):
    """What a member held that goes is taken for done."""

    def leave(self, key: MemberKey, kept: Mapping[int, Collection[int]] | None = None) -> None:
        member = self.members.get(key)
        if member is not None:
            for piece in list(member.held):
                self.done(key, piece.taken.group, piece.offsets)
        super().leave(key, kept)


class HastyShare(Share):
    """Writes of what is with members that it is done."""

    def place(self, group: int) -> SharePlace:
        place = super().place(group)
        return SharePlace(place.read, place.read)


class GenerousShare(Share):
    """Deals what one has to another one too."""

    def deal(self) -> list[Deal]:
        deals = super().deal()
        others = [key for key, member in self.members.items() if not member.resting]
        more = [Deal(key, deal.pieces) for deal in deals for key in others if key != deal.member]
        return [*deals, *more[:1]]


class HurriedShare(Share):
    """Deals what came last first."""

    def deal(self) -> list[Deal]:
        for member in self.members.values():
            member.queue.reverse()
        return super().deal()


class WanderingChoices(TopicChoices):
    """Gives each topic to one member after the other."""

    def choose(self, topic: bytes) -> DealtMember:
        self.members.append(self.members.pop(0))
        return self.members[0]


def _of_any_number(judge: Callable[..., Any]) -> Callable[..., Any]:
    """`AskedBlock.wanted` or `unwanted` that compares no numbers."""

    def careless(self: AskedBlock, broker: str, incarnation: int, number: int, *rest: Any) -> Any:
        return judge(self, broker, incarnation, 0, *rest)

    return careless


BREAKS = {
    each.name: each
    for each in (
        Break(
            "acknowledge-early",
            "a publication is acknowledged before the second copy has it",
            ((copies_module, "Followers", HastyFollowers),),
        ),
        Break(
            "skip-epoch-check",
            "a follower takes what a deposed leader sends",
            ((copies_module, "Following", CarelessFollowing),),
        ),
        Break("apply-early", "tables follow from what is not committed", gate=HastyGate),
        Break("forget-promise", "a store that is opened again has forgotten what it promised", gate=ForgetfulGate),
        Break(
            "count-joiner-early",
            "a joiner counts before it has what is committed",
            ((copies_module, "Followers", EagerFollowers),),
        ),
        Break(
            "deliver-uncommitted",
            "a publication is delivered before it is committed",
            ((server_module, "Copies", TalkativeCopies),),
        ),
        Break(
            "vouch-for-unknown",
            "what a matcher has not heard of it takes for unwanted",
            (
                (AskedBlock, "wanted", _of_any_number(AskedBlock.wanted)),
                (AskedBlock, "unwanted", _of_any_number(AskedBlock.unwanted)),
            ),
            first=CONTENT_FROM,
        ),
        Break(
            "pass-over-gaps",
            "a circuit takes what comes, whether what was sent before it has come or not",
            ((circuit_link_module, "Circuit", HastyCircuit),),
            first=CONTENT_FROM,
        ),
        Break(
            "ask-nobody",
            "conditions hold for everything that a broker gets",
            ((Predicate, "matches", lambda self, record: True),),
            first=CONTENT_FROM,
        ),
        Break(
            "forget-returned",
            "what a member of a share held that goes is taken for done",
            ((led_shares_module, "Share", ForgetfulShare),),
            first=SHARES_FROM,
        ),
        Break(
            "place-beyond-open",
            "a share is written as having done what is with its members",
            ((led_shares_module, "Share", HastyShare),),
            first=SHARES_FROM,
        ),
        Break(
            "forget-leaving",
            "coordinators are not told which members of shares have left",
            ((SharedMembers, "_tell_left", lambda self, key, kept: None),),
            first=SHARES_FROM,
        ),
        Break(
            "deal-twice",
            "what a member of a share holds is dealt to another one",
            ((led_shares_module, "Share", GenerousShare),),
            first=SHARES_FROM,
        ),
        Break(
            "deal-backwards",
            "what waits for a member of a share is dealt the last first",
            ((led_shares_module, "Share", HurriedShare),),
            first=SHARES_FROM,
        ),
        Break(
            "wander",
            "a topic of a share goes from member to member while all stay",
            ((dealing_module, "TopicChoices", WanderingChoices),),
            first=SHARES_FROM,
        ),
    )
}
