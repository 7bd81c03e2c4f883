"""One member of a SkipCloud: what it knows, what it says in each cycle, where it sends what is routed. Pure.

Randomness comes as a `random.Random`, time as `tick`, one cycle (a second, say) each; what is to be sent comes back.

    each cycle     one level shuffles, in turn (Algorithm 1 as its text says; the loop that is printed would update all
                   of them): the contact that has been silent for longest is asked, and is dropped where it does not
                   answer. Then empty places are filled with other levels' contacts of the same prefix.
    routing        to the contact nearest to the target; where none is nearer than oneself one is there. Algorithm 2
                   with `l_max <= l` in line 7: as printed (>=) it would stop at the first hop.
    a join         goes from hop to hop towards the new member's cluster, and each hop tells what it knows
    a departure    is told to all contacts, and to whoever else the shell can reach
    a failure      is found by a shuffle or by the shell (`unreachable`)

The hops. R is the cluster nearest to the target. A member that has l < m digits in common with R has a contact of R's
child at level l + 1 (the view of level l holds some of every child), and the contact that it chooses is as near or
nearer: it has l + 1 digits in common with R or more. So m hops are enough, and m <= ceil(log_b N) where all top
clusters can be filled (`levels_for`).

Who was dropped is *refused*: others still pass on what they heard of it before that, and it would be back at once. It
counts again when it has spoken since. What nobody has heard for `age_max` cycles is gone for all.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from .identifiers import CloudMember, CloudShape, common_prefix, remoteness
from .messages import (
    CloudLetter,
    CloudMessage,
    Departure,
    JoinRequest,
    ShuffleAnswer,
    ShuffleRequest,
    Welcome,
    check_cloud_message,
)
from .view import ClusterView, Contact

# A contact is asked when it is the oldest one, so in a view of n a living one is heard every n shuffles or so.
_AGE_VIEWS: Final = 3
# Targets whose nearest contacts are remembered until what is known of contacts changes, by default all that there are.
_NEAREST_MAX: Final = 1_024
# Dropped members that are remembered; the first ones are forgotten, and cost a wasted shuffle each if told of again.
REFUSED_MAX: Final = 1_024


class _Shuffle(NamedTuple):
    """A shuffle that has not been answered yet; it is asked for again each cycle before `until`."""

    request: ShuffleRequest
    until: int


class SkipCloudNode:
    """The member `own`."""

    def __init__(self, shape: CloudShape, own: CloudMember, dice: random.Random, answer_cycles: int = 1) -> None:
        """`answer_cycles`: who is asked so many times, a cycle each, and does not answer is gone.

        Raises UsageError: the shape cannot be.
        """
        self.shape = shape.valid()
        self.own = own
        self.views = [ClusterView(shape, own, level) for level in range(shape.levels + 1)]
        self.age_max = _AGE_VIEWS * shape.view_contacts_max * (shape.levels + 1)
        self._dice = dice
        self._answer_cycles = answer_cycles
        # Members that began together do not all shuffle the same level.
        self._cycle = dice.randrange(shape.levels + 1)
        self._shuffling: dict[CloudMember, _Shuffle] = {}
        # In which cycle each was dropped.
        self._refused: dict[CloudMember, int] = {}
        # By target: the contacts that are nearest to it, none where it is nearest itself.
        self._nearest: dict[bytes, list[CloudMember]] = {}

    @property
    def cycle(self) -> int:
        """The number of this cycle, by which it counts ages."""
        return self._cycle

    @property
    def alone(self) -> bool:
        """Whether it knows nobody: it has to join (anew)."""
        return not any(map(len, self.views))

    def join(self, introducer: CloudMember) -> list[CloudLetter]:
        """Becomes known, by any member."""
        return [CloudLetter(introducer, JoinRequest(self.own))]

    def leave(self, others: Collection[CloudMember] = ()) -> list[CloudLetter]:
        """Says so to all contacts, and to others: it may be a contact of theirs though they are none of its."""
        return [CloudLetter(member, Departure()) for member in sorted(self.contacts().union(others))]

    def tick(self) -> list[CloudLetter]:
        """One cycle (Algorithm 1)."""
        self._cycle += 1
        for member in [member for member, shuffle in self._shuffling.items() if shuffle.until <= self._cycle]:
            self.unreachable(member)
        again = [CloudLetter(member, shuffle.request) for member, shuffle in self._shuffling.items()]
        oldest = self._cycle - self.age_max
        for view in self.views:
            view.drop_older(oldest)
        self._refused = {member: cycle for member, cycle in self._refused.items() if cycle >= oldest}
        self._fill()
        self._nearest.clear()
        return again + self._shuffle(self._cycle % len(self.views))

    def received(self, sender: CloudMember, message: CloudMessage) -> list[CloudLetter]:
        """A message has come.

        Raises PeerError: no member of this SkipCloud says that; nothing has changed.
        """
        check_cloud_message(self.shape, sender, message)
        if isinstance(message, Departure):
            self.unreachable(sender)
            return []
        # Who speaks lives, whatever was believed before.
        self._refused.pop(sender, None)
        try:
            match message:
                case ShuffleRequest(level, contacts):
                    return self._answer(sender, level, contacts)
                case ShuffleAnswer(level, contacts):
                    self._answered(sender, level, contacts)
                case JoinRequest(member):
                    return self._welcome(member)
                case Welcome(contacts):
                    self._take((Contact(sender, 0), *contacts))
            return []
        finally:
            self._nearest.clear()

    def next_hop(self, target: bytes, linked: Collection[str] = ()) -> CloudMember | None:
        """Where what is for the cluster nearest to `target` goes next; None: it is here (Algorithm 2). Of equally near
        ones one of those with these names is taken, where there is any."""
        nearest = self._nearest.get(target)
        if nearest is None:
            if len(self._nearest) >= _NEAREST_MAX:
                self._nearest.clear()
            nearest = self._nearest[target] = self._nearest_to(target)
        return self._one_of(nearest, linked) if nearest else None

    def _nearest_to(self, target: bytes) -> list[CloudMember]:
        base = self.shape.base
        here = remoteness(self.own.digits, target, base)
        far = {member: remoteness(member.digits, target, base) for member in self.contacts()}
        nearest = min(far.values(), default=here)
        return [member for member, found in far.items() if found == nearest] if nearest < here else []

    def detour(self, target: bytes, without: Collection[str]) -> CloudMember | None:
        """The contact that is nearest to `target`, whether it is nearer than oneself or not, of those without these
        names: where a view lacks somebody, another one may know it."""
        found = sorted([member for member in self.contacts() if member.name not in without])
        return min(found, key=lambda member: remoteness(member.digits, target, self.shape.base), default=None)

    def _one_of(self, members: Iterable[CloudMember], linked: Collection[str]) -> CloudMember:
        every = sorted(members)
        return self._dice.choice([member for member in every if member.name in linked] or every)

    def knows(self, member: CloudMember) -> bool:
        """Whether it is in some view."""
        return any(view.has(member) for view in self.views)

    def contacts(self) -> set[CloudMember]:
        """Everybody in its views."""
        return {member for view in self.views for member in view.members()}

    def cluster(self) -> list[CloudMember]:
        """The others of its top cluster."""
        return self.views[-1].members()

    def of_siblings(self, level: int) -> list[CloudMember]:
        """A contact of each cluster that has `level` digits in common with it, and not one more."""
        children: dict[int, list[CloudMember]] = {}
        for member in self.views[level].members():
            if member.digits[level] != self.own.digits[level]:
                children.setdefault(member.digits[level], []).append(member)
        return [self._one_of(members, ()) for _, members in sorted(children.items())]

    def unreachable(self, member: CloudMember) -> None:
        """It does not answer, or has left."""
        self._shuffling.pop(member, None)
        for view in self.views:
            view.drop(member)
        self._nearest.clear()
        self._refused[member] = self._cycle
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def _shuffle(self, level: int) -> list[CloudLetter]:
        view = self.views[level]
        partner = view.oldest()
        if partner is None or partner in self._shuffling:
            return []
        request = ShuffleRequest(level, (Contact(self.own, 0), *view.sample(self._cycle, self._dice, partner)))
        self._shuffling[partner] = _Shuffle(request, self._cycle + self._answer_cycles)
        return [CloudLetter(partner, request)]

    def _answer(self, sender: CloudMember, level: int, contacts: tuple[Contact, ...]) -> list[CloudLetter]:
        view = self.views[level]
        sample = view.sample(self._cycle, self._dice, sender)
        view.take(self._credible(contacts), self._cycle, [contact.member for contact in sample])
        return [CloudLetter(sender, ShuffleAnswer(level, sample))]

    def _answered(self, sender: CloudMember, level: int, contacts: tuple[Contact, ...]) -> None:
        shuffle = self._shuffling.pop(sender, None)
        view = self.views[level]
        sent: list[CloudMember] = []
        if shuffle is not None and shuffle.request.level == level:
            view.drop(sender)
            sent = [contact.member for contact in shuffle.request.contacts[1:]]
        view.take([*self._credible(contacts), Contact(sender, 0)], self._cycle, sent)

    def _welcome(self, member: CloudMember) -> list[CloudLetter]:
        known = {contact.member: contact for contact in self._told() if contact.member != member}
        letters = [CloudLetter(member, Welcome(tuple(known.values())))]
        towards = self.next_hop(member.digits)
        if towards is not None and towards != member:
            letters.append(CloudLetter(towards, JoinRequest(member)))
        self._take((Contact(member, 0),))
        return letters

    def _told(self) -> list[Contact]:
        return [contact for view in self.views for contact in view.contacts(self._cycle)]

    def _take(self, contacts: Iterable[Contact]) -> None:
        self._distribute(self._credible(contacts))

    def _fill(self) -> None:
        """Algorithm 1, lines 4 to 6."""
        self._distribute(set(self._told()))

    def _distribute(self, contacts: Iterable[Contact]) -> None:
        """To all views that they concern."""
        shared = sorted([(common_prefix(contact.member.digits, self.own.digits), contact) for contact in contacts])
        for level, view in enumerate(self.views):
            view.take([contact for length, contact in shared if length >= level], self._cycle)

    def _credible(self, contacts: Iterable[Contact]) -> list[Contact]:
        """Those that have spoken since they were dropped here, and not too long ago."""
        oldest = self._cycle - self.age_max
        return [
            contact
            for contact in contacts
            if self._cycle - contact.age > self._refused.get(contact.member, oldest) and contact.member != self.own
        ]
