"""Members of a SkipCloud in one thread, from a seed: their cycles, a network that delays and loses, crashes.

A cycle is a unit of time. Everybody has one, each at an own moment within it. A message takes from nothing to
`delay_cycles`; those to members that have crashed are lost without anybody being told.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple

from lexicast.cluster.skipcloud.identifiers import CloudMember, CloudShape
from lexicast.cluster.skipcloud.messages import CloudLetter
from lexicast.cluster.skipcloud.node import SkipCloudNode


class CloudNetworkSetting(NamedTuple):
    """How bad the network is: the longest delay in cycles, the part of messages that is lost, and after how many cycles
    a member takes another one for gone that has not answered."""

    delay_cycles: float = 0.1
    loss: float = 0.0
    answer_cycles: int = 1


class Routed(NamedTuple):
    """How a message got to where it was going: over `hops`, the last of which reached `member`; None: it was lost."""

    hops: int
    member: CloudMember | None


class OverlayNetwork:
    """`nodes`: those that live, by member. `messages`, `contacts`: sent so far, and carried in them."""

    def __init__(self, shape: CloudShape, seed: int, setting: CloudNetworkSetting | None = None) -> None:
        self.shape = shape
        self.setting = setting or CloudNetworkSetting()
        self.nodes: dict[CloudMember, SkipCloudNode] = {}
        self.messages = self.contacts = 0
        self.now = 0.0
        self._dice = random.Random(seed)
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def join(self, digits: bytes) -> CloudMember:
        """A new member begins, and joins by one of those that are there, each cycle until it is known."""
        member = CloudMember(f"member-{next(self._order):06}", digits)
        node = SkipCloudNode(self.shape, member, random.Random(self._dice.random()), self.setting.answer_cycles)
        self.nodes[member] = node
        self._send(member, self._joining(node))
        self._at(self.now + self._dice.random(), partial(self._cycle, member))
        return member

    def grown(self, digits: Iterable[bytes], cycles_each: float = 0.0) -> list[CloudMember]:
        """Members join, one after the other."""
        joined: list[CloudMember] = []
        for each in digits:
            joined.append(self.join(each))
            self.run(cycles_each)
        return joined

    def crash(self, members: Iterable[CloudMember]) -> None:
        """They are gone; nobody is told."""
        for member in members:
            del self.nodes[member]

    def leave(self, member: CloudMember) -> None:
        """It goes, and says so."""
        self._send(member, self.nodes.pop(member).leave())

    def run(self, cycles: float) -> None:
        """Time goes by."""
        end = self.now + cycles
        while self._waiting and self._waiting[0][0] <= end:
            self.now, _, happens = heapq.heappop(self._waiting)
            happens()
        self.now = end

    def settled(self) -> bool:
        """Whether each view has contacts of each child that has members, the top ones the whole cluster, and none has
        a contact that is gone."""
        return next(self.unsettled(), None) is None

    def unsettled(self) -> Iterator[tuple[CloudMember, bytes]]:
        """(member, prefix of a child): it knows nobody there, or somebody who is gone, or, where that is a top cluster,
        not everybody."""
        members: dict[bytes, set[CloudMember]] = {}
        for member in self.nodes:
            for length in range(self.shape.levels + 1):
                members.setdefault(member.digits[:length], set()).add(member)
        for member, node in self.nodes.items():
            for level, view in enumerate(node.views[:-1]):
                known = set(view.members())
                for child in [member.digits[:level] + bytes([digit]) for digit in range(self.shape.base)]:
                    alive = members.get(child, set()) - {member}
                    there = {each for each in known if each.digits.startswith(child)}
                    if not there <= alive or (alive and not there):
                        yield member, child
            if set(node.views[-1].members()) != members[member.digits] - {member}:
                yield member, member.digits

    def routed(self, source: CloudMember, target: bytes, retries: int = 0) -> Routed:
        """Routes a message in no time. A hop to somebody who has crashed loses it, or, as long as `retries` are left,
        is noticed: then another hop is chosen."""
        at, hops = source, 0
        while True:
            to = self.nodes[at].next_hop(target)
            if to is None:
                return Routed(hops, at)
            hops += 1
            if to in self.nodes:
                at = to
            elif retries:
                retries -= 1
                self.nodes[at].unreachable(to)
            else:
                return Routed(hops, None)

    def _at(self, moment: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (moment, next(self._order), happens))

    def _cycle(self, member: CloudMember) -> None:
        if member in self.nodes:
            node = self.nodes[member]
            self._send(member, node.tick() if not node.alone else self._joining(node))
            self._at(self.now + 1.0, partial(self._cycle, member))

    def _joining(self, node: SkipCloudNode) -> list[CloudLetter]:
        """By somebody who is not alone: two who are would be an overlay of their own."""
        known = [member for member, other in self.nodes.items() if member != node.own and not other.alone]
        if not known:
            known = [member for member in self.nodes if member < node.own][:1]
        return node.join(self._dice.choice(known)) if known else []

    def _send(self, sender: CloudMember, letters: Iterable[CloudLetter]) -> None:
        for to, message in letters:
            self.messages += 1
            self.contacts += len(getattr(message, "contacts", ()))
            if self._dice.random() >= self.setting.loss:
                arrives = self.now + self._dice.random() * self.setting.delay_cycles
                self._at(arrives, partial(self._arrive, sender, CloudLetter(to, message)))

    def _arrive(self, sender: CloudMember, letter: CloudLetter) -> None:
        if letter.to in self.nodes:
            self._send(letter.to, self.nodes[letter.to].received(sender, letter.message))
