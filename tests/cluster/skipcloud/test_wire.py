"""A SkipCloud's messages on links: what is packed is what comes out, and which addresses are believed."""

from __future__ import annotations

import pytest

from lexicast.cluster.errors import PeerError
from lexicast.cluster.skipcloud.identifiers import CloudShape
from lexicast.cluster.skipcloud.messages import (
    CloudMessage,
    Departure,
    JoinRequest,
    ShuffleAnswer,
    ShuffleRequest,
    Welcome,
    contacts_max,
)
from lexicast.cluster.skipcloud.view import Contact
from lexicast.cluster.skipcloud.wire import (
    ADDRESSES_MAX,
    AddressBook,
    WireMessage,
    named_member,
    pack_cloud_message,
    unpack_cloud_message,
)

SHAPE = CloudShape(2, 2)
OWN, A, B = (named_member(SHAPE, name) for name in ("own", "a", "b"))
ADDRESSES = {"a": ("tcp:1",), "b": ("unix:x", "tcp:2")}


@pytest.mark.parametrize(
    "message",
    [
        ShuffleRequest(1, (Contact(OWN, 0), Contact(A, 3), Contact(B, 0))),
        ShuffleAnswer(2, (Contact(A, 3),)),
        ShuffleAnswer(0, ()),
        JoinRequest(OWN),
        JoinRequest(A),
        Welcome((Contact(B, 1), Contact(A, 9))),
        Departure(),
    ],
)
def test_what_is_packed_comes_out(message: CloudMessage) -> None:
    wire = pack_cloud_message(message, ("own", 0, ("tcp:0",)), 5, ADDRESSES)
    assert wire.version == 5
    assert wire.contacts[0] == ("own", 0, ("tcp:0",))
    assert unpack_cloud_message(SHAPE, "own", wire) == message


def test_who_cannot_be_reached_is_not_told() -> None:
    wire = pack_cloud_message(Welcome((Contact(A, 1), Contact(B, 1))), ("own", 0, ()), 0, {"b": ("x",)})
    assert [name for name, _, _ in wire.contacts] == ["own", "b"]


@pytest.mark.parametrize(
    "wire",
    [
        WireMessage(0, 0, 0, ()),
        WireMessage(0, 0, 0, (("other", 0, ()),)),
        WireMessage(9, 0, 0, (("own", 0, ()),)),
        WireMessage(1, 0, 0, (("own", 0, ()),) * (contacts_max(SHAPE) + 3)),
    ],
)
def test_what_no_member_sends_is_a_peers_mistake(wire: WireMessage) -> None:
    with pytest.raises(PeerError):
        unpack_cloud_message(SHAPE, "own", wire)


def test_of_two_addresses_those_that_were_heard_later_are_believed_and_no_more_are_kept_than_may_be() -> None:
    book = AddressBook(2)
    book.heard([("a", 3, ("old",))], 10)
    book.heard([("a", 5, ("older",))], 10)
    assert book.addresses == {"a": ("old",)}
    book.heard([("a", 1, ("new",)), ("b", 0, ("x",))], 10)
    assert book.addresses == {"a": ("new",), "b": ("x",)}
    book.heard([("c", 0, ("y",))], 11)
    assert set(book.addresses) == {"b", "c"}
    with pytest.raises(PeerError):
        book.heard([("d", 0, ("z",) * (ADDRESSES_MAX + 1))], 11)
