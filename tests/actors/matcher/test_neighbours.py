"""A matcher's neighbours in the overlay: what waits for a link goes over it or comes back; who leaves says so."""

from __future__ import annotations

import asyncio
from typing import Any

from lexicast.actors.matcher.overlay.neighbours import Neighbours, OverlayMessage
from lexicast.actors.matcher.overlay.overlay import MatcherOverlay
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.protocol.messages import CLOUD, ROUTE
from lexicast.cluster.skipcloud.identifiers import CloudShape
from lexicast.cluster.skipcloud.wire import CloudAct

ASKED: OverlayMessage = (ROUTE, 1, "b", ("coordinator-0",), b"")


class FakeLink:
    """A link to another matcher."""

    def __init__(self, name: str, closed: bool = False) -> None:
        self.name = name
        self.closed = closed
        self.info = {"matcher": name}
        self.sent: list[OverlayMessage] = []

    def write_buffer_bytes(self) -> int:
        """Nothing waits."""
        return 0

    def gather(self, message: OverlayMessage) -> None:
        """It is sent."""
        self.sent.append(message)

    def flush(self) -> None:
        """It is sent already."""

    def close(self) -> None:
        """It ends."""
        self.closed = True

    abort = close


class Dialled:
    """Links that are dialled: the next one, or why there is none."""

    def __init__(self) -> None:
        self.count = 0
        self.next: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def __call__(self, addresses: tuple[str, ...], user: object) -> Any:
        """As `dial_any`."""
        self.count += 1
        return await self.next


class User:
    """Whose neighbours they are: who could not be reached, and what was not sent."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, list[OverlayMessage]]] = []

    def heard(self, link: object, message: OverlayMessage) -> None:
        """Nothing is said here."""
        raise AssertionError(message)

    def wants(self, name: str) -> bool:
        """Whoever was linked is a contact."""
        return True

    def unreachable(self, name: str, unsent: list[OverlayMessage]) -> None:
        """Remember it."""
        self.gone.append((name, unsent))


def neighbours() -> tuple[Neighbours, Dialled, User]:
    """Those of `a`, which knows where `b` is."""
    dial, user = Dialled(), User()
    made = Neighbours("a", dial, user)
    made.book.heard([("b", 0, ("unix:b",))], 0)
    return made, dial, user


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_waits_goes_over_the_link_and_comes_back_where_there_is_none() -> None:
    made, dial, user = neighbours()
    assert made.send("b", ASKED)
    await turns()
    link = FakeLink("b")
    dial.next.set_result(link)
    await turns()
    assert link.sent == [ASKED]
    assert not made.send("c", ASKED), "nobody knows where that is"
    made, dial, user = neighbours()
    made.send("b", ASKED)
    dial.next.set_exception(UnavailableError("nobody is there"))
    await turns()
    assert user.gone == [("b", [ASKED])]


async def test_what_waits_comes_back_where_the_link_ended_as_it_was_opened() -> None:
    made, dial, user = neighbours()
    made.send("b", ASKED)
    dial.next.set_result(FakeLink("b", closed=True))
    await turns()
    assert user.gone == [("b", [ASKED])]
    assert dial.count == 1
    assert made.links == {}


async def test_who_has_dialled_is_there_whatever_becomes_of_the_dial_the_other_way() -> None:
    made, dial, user = neighbours()
    made.send("b", ASKED)
    await turns()
    link: Any = FakeLink("b")
    made.opened(link)
    await turns()
    assert link.sent == [ASKED]
    dial.next.set_exception(TimeoutError())
    await turns()
    assert user.gone == []
    assert made.links == {"b": link}


async def test_who_leaves_says_so_to_all_that_are_linked_and_has_no_links_any_more() -> None:
    """Whose contact it is, it does not know: views are no two alike."""
    shape = CloudShape(2, 2)
    overlay: Any = MatcherOverlay(
        shape, "a", 1, ("unix:a",), Dialled(), lambda name: None, lambda path, number, data: None, lambda roster: None
    )
    links: list[Any] = [FakeLink(f"matcher-{number}") for number in range(3)]
    for link in links:
        overlay.neighbours.opened(link)
    await turns()
    assert overlay.node.contacts() == set()
    overlay.leave()
    assert [[message[:2] for message in link.sent] for link in links] == [[(CLOUD, CloudAct.DEPARTURE)]] * 3
    assert all(link.closed for link in links)
    assert overlay.neighbours.links == {}
