"""What members of a SkipCloud tell each other, and the check of what has come from the network. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import PeerError
from .identifiers import CloudMember, CloudShape
from .view import Contact

NAME_BYTES_MAX: Final = 256


class ShuffleRequest(NamedTuple):
    """Contacts of one level, the sender first with age 0; wants as many back."""

    level: int
    contacts: tuple[Contact, ...]


class ShuffleAnswer(NamedTuple):
    """What a ShuffleRequest gets back."""

    level: int
    contacts: tuple[Contact, ...]


class JoinRequest(NamedTuple):
    """`member` is new. Goes on towards its cluster, hop by hop; each hop welcomes it."""

    member: CloudMember


class Welcome(NamedTuple):
    """Contacts of all levels that a new member can use."""

    contacts: tuple[Contact, ...]


class Departure(NamedTuple):
    """The sender leaves."""


CloudMessage = ShuffleRequest | ShuffleAnswer | JoinRequest | Welcome | Departure


class CloudLetter(NamedTuple):
    """A message that is to be sent."""

    to: CloudMember
    message: CloudMessage


def contacts_max(shape: CloudShape) -> int:
    """How many contacts a message carries at most: a top cluster, or all views of a welcome."""
    return shape.levels * shape.view_contacts_max + shape.cluster_members_max


def check_cloud_message(shape: CloudShape, sender: CloudMember, message: CloudMessage) -> None:
    """Raises PeerError: what no member of this SkipCloud sends."""
    _check_members(shape, [sender])
    match message:
        case ShuffleRequest() | ShuffleAnswer():
            if not 0 <= message.level <= shape.levels:
                raise PeerError(f"{sender.name} shuffles level {message.level}; there are 0 to {shape.levels}")
            _check_contacts(shape, sender, message.contacts)
        case Welcome():
            _check_contacts(shape, sender, message.contacts)
        case JoinRequest():
            _check_members(shape, [message.member])


def _check_contacts(shape: CloudShape, sender: CloudMember, contacts: tuple[Contact, ...]) -> None:
    if len(contacts) > (most := contacts_max(shape)):
        raise PeerError(f"{sender.name} tells {len(contacts)} contacts at once; {most} are allowed")
    if any(contact.age < 0 for contact in contacts):
        raise PeerError(f"{sender.name} tells an age below 0")
    _check_members(shape, [contact.member for contact in contacts])


def _check_members(shape: CloudShape, members: Iterable[CloudMember]) -> None:
    for member in members:
        if len(member.digits) != shape.levels or max(member.digits) >= shape.base:
            raise PeerError(f"an identifier has {shape.levels} digits below {shape.base}, not {member.digits[:16]!r}")
        if len(member.name.encode()) > NAME_BYTES_MAX:
            raise PeerError(f"a member's name has at most {NAME_BYTES_MAX} bytes")
