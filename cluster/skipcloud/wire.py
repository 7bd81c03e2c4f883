"""A SkipCloud's messages as plain values on links, with the addresses of whom they name. Pure.

A message is (act, level, version, contacts): the version of what is spread that the sender has (`spreading`), and
contacts as (name, age, addresses), the sender itself first. An identifier is what a name hashes to, so it does not
travel. Which addresses are believed is decided by ages: of two that are told the one that was heard later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ..errors import PeerError
from .identifiers import CloudMember, CloudShape
from .messages import CloudMessage, Departure, JoinRequest, ShuffleAnswer, ShuffleRequest, Welcome, contacts_max
from .view import Contact

ADDRESSES_MAX: Final = 8

Addresses = tuple[str, ...]
WireContact = tuple[str, int, Addresses]


class CloudAct(IntEnum):
    """What a message is."""

    SHUFFLE = 0
    SHUFFLED = 1
    JOIN = 2
    WELCOME = 3
    DEPARTURE = 4


class WireMessage(NamedTuple):
    """See the module's docstring."""

    act: int
    level: int
    version: int
    contacts: tuple[WireContact, ...]


def named_member(shape: CloudShape, name: str) -> CloudMember:
    """The member of that name."""
    return CloudMember(name, shape.hashed(name.encode()))


def pack_cloud_message(
    message: CloudMessage, own: WireContact, version: int, addresses: Mapping[str, Addresses]
) -> WireMessage:
    """As it is sent by `own`. Contacts whose addresses are not known are left out: nobody could use them."""
    match message:
        case ShuffleRequest(level, contacts):
            return WireMessage(CloudAct.SHUFFLE, level, version, (own, *_told(contacts[1:], addresses)))
        case ShuffleAnswer(level, contacts):
            return WireMessage(CloudAct.SHUFFLED, level, version, (own, *_told(contacts, addresses)))
        case JoinRequest(member):
            joins = () if member.name == own[0] else _told([Contact(member, 0)], addresses)
            return WireMessage(CloudAct.JOIN, 0, version, (own, *joins))
        case Welcome(contacts):
            return WireMessage(CloudAct.WELCOME, 0, version, (own, *_told(contacts, addresses)))
        case Departure():
            return WireMessage(CloudAct.DEPARTURE, 0, version, (own,))


def _told(contacts: Iterable[Contact], addresses: Mapping[str, Addresses]) -> Sequence[WireContact]:
    return [(member.name, age, addresses[member.name]) for member, age in contacts if member.name in addresses]


def unpack_cloud_message(shape: CloudShape, sender: str, message: WireMessage) -> CloudMessage:
    """What `pack_cloud_message` was given. Raises PeerError: no member of this SkipCloud sends that."""
    first, *others = message.contacts or (("", 0, ()),)
    if first[0] != sender or len(message.contacts) > contacts_max(shape) + 2:
        raise PeerError(f"{sender} tells {len(message.contacts)} contacts, of which it is not the first, or too many")
    contacts = tuple([Contact(named_member(shape, name), age) for name, age, _ in others])
    own = Contact(named_member(shape, sender), 0)
    match message.act:
        case CloudAct.SHUFFLE:
            return ShuffleRequest(message.level, (own, *contacts))
        case CloudAct.SHUFFLED:
            return ShuffleAnswer(message.level, contacts)
        case CloudAct.JOIN:
            return JoinRequest(contacts[0].member if contacts else own.member)
        case CloudAct.WELCOME:
            return Welcome(contacts)
        case CloudAct.DEPARTURE:
            return Departure()
    raise PeerError(f"{sender} says {message.act}, which no member does")


class AddressBook:
    """Where members are reached; of whom nothing has been told for long is forgotten when there are too many."""

    def __init__(self, most: int) -> None:
        self.addresses: dict[str, Addresses] = {}
        self._heard: dict[str, int] = {}
        self._most = most

    def heard(self, contacts: Iterable[WireContact], cycle: int) -> None:
        """What is told in a cycle of these. Raises PeerError: too many addresses."""
        for name, age, addresses in contacts:
            if len(addresses) > ADDRESSES_MAX:
                raise PeerError(f"{name} has {len(addresses)} addresses; {ADDRESSES_MAX} are allowed")
            if addresses and cycle - age >= self._heard.get(name, cycle - age):
                self._heard[name], self.addresses[name] = cycle - age, addresses
        while len(self._heard) > self._most:
            oldest = min(self._heard, key=lambda name: self._heard[name])
            del self._heard[oldest], self.addresses[oldest]
