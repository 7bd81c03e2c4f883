"""The view that a member has of its cluster at one level: contacts, how old what is known of them is. Pure.

Below the top a view is a sample with room for the same number of contacts of each child cluster (SREM, section 3.1), so
whoever routes finds one in every child that is not empty. At the top, level m, it is the whole cluster. Shuffles are
Cyclon's (Voulgaris et al. 2005, section 2.2) with what rooms a child bring with them:

    ask       the oldest contact gives up its place; it is told of oneself, age 0, and of a sample
    answer    a sample
    both      what has come fills empty places, then those of what was sent; of what was known the younger age counts

Not Cyclon's: the contact that has answered returns where its child has a place left. With places a child, and children
that have one member, that would be forgotten by everybody who has just heard it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from .identifiers import CloudMember, CloudShape


class Contact(NamedTuple):
    """A member, and how many cycles ago it spoke itself, as far as its teller knows."""

    member: CloudMember
    age: int


class ClusterView:
    """The contacts of the member `own` at `level`."""

    def __init__(self, shape: CloudShape, own: CloudMember, level: int) -> None:
        self._own = own
        self._prefix = own.digits[:level]
        self._top = level == shape.levels
        self._room = shape.cluster_members_max - 1 if self._top else shape.contacts_a_child
        self._sample = self._room if self._top else shape.shuffle_contacts
        # Of each child's contacts the cycle in which they spoke last: an age that needs no counting.
        self._children: dict[int, dict[CloudMember, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._children.values()))

    def members(self) -> list[CloudMember]:
        """All contacts."""
        return [member for contacts in self._children.values() for member in contacts]

    def has(self, member: CloudMember) -> bool:
        """Whether it is a contact."""
        return self.concerns(member) and member in self._children.get(self._child(member), {})

    def concerns(self, member: CloudMember) -> bool:
        """Whether it is another member of this cluster."""
        return member.digits.startswith(self._prefix) and member != self._own

    def oldest(self) -> CloudMember | None:
        """The contact of which nothing has been heard for longest."""
        all_heard = [(heard, member) for contacts in self._children.values() for member, heard in contacts.items()]
        return min(all_heard, default=(0, None))[1]

    def contacts(self, now: int) -> list[Contact]:
        """All contacts as they are told to others."""
        return [Contact(each, now - heard) for child in self._children.values() for each, heard in child.items()]

    def sample(self, now: int, dice: random.Random, without: CloudMember) -> tuple[Contact, ...]:
        """Contacts by chance for a shuffle, as many of each child as of any other."""
        order = [dice.sample(sorted(contacts.items()), len(contacts)) for contacts in self._children.values()]
        dice.shuffle(order)
        turns = [found for turn in zip_longest(*order) for found in turn if found and found[0] != without]
        return tuple([Contact(member, now - heard) for member, heard in turns[: self._sample]])

    def take(self, contacts: Iterable[Contact], now: int, sent: Iterable[CloudMember] = ()) -> None:
        """What has come of this cluster: into empty places, then into those of what was `sent`."""
        replaced: dict[int, list[CloudMember]] = {}
        for member in sent:
            replaced.setdefault(self._child(member), []).append(member)
        for member, age in contacts:
            if not self.concerns(member):
                continue
            child = self._child(member)
            known = self._children.setdefault(child, {})
            if member in known:
                known[member] = max(known[member], now - age)
            elif len(known) < self._room or _make_room(known, replaced.get(child, [])):
                known[member] = now - age

    def drop(self, member: CloudMember) -> None:
        """It is no contact any more."""
        if self.concerns(member):
            self._children.get(self._child(member), {}).pop(member, None)

    def drop_older(self, cycle: int) -> None:
        """Those that have not spoken since `cycle` are no contacts any more."""
        for child, contacts in self._children.items():
            if min(contacts.values(), default=cycle) < cycle:
                self._children[child] = {member: heard for member, heard in contacts.items() if heard >= cycle}

    def _child(self, member: CloudMember) -> int:
        return 0 if self._top else member.digits[len(self._prefix)]


def _make_room(known: dict[CloudMember, int], replaced: list[CloudMember]) -> bool:
    """Whether one of `replaced` was still there and is no contact any more."""
    while replaced:
        if known.pop(replaced.pop(), None) is not None:
            return True
    return False
