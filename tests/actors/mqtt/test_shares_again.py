"""The shares of a session that is taken up again: joined unless its client has left them meanwhile, whoever else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.mqtt import share_subscriptions
from lexicast.cluster.errors import LimitError

SHARES = [b"$share/g/a", b"$share/g/b", b"$share/g/c"]


class Joining:
    """In the place of `join_share`: joins, but for those of `full`, once each; does `meanwhile` first."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(client_id="c", subscriptions=dict.fromkeys(SHARES))
        self.windows: dict[bytes, Any] = {}
        self.closed = False
        self.full: list[bytes] = []
        self.asked: list[bytes] = []

    async def join(self, engine: Any, main: Joining, name: bytes, grant: Grant) -> None:
        assert main is self
        self.asked.append(name)
        if name in self.full:
            self.full.remove(name)
            raise LimitError("too many")
        self.windows[name] = grant
        self.meanwhile()

    def meanwhile(self) -> None:
        """Nothing happens."""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Joining:
    joining = Joining()
    monkeypatch.setattr(share_subscriptions, "join_share", joining.join)
    monkeypatch.setattr(share_subscriptions, "ROOM_S", 0.0)
    return joining


async def again(main: Any) -> None:
    engine: Any = None
    await share_subscriptions.join_again(engine, main, dict.fromkeys(SHARES, Grant()))


async def test_what_the_client_leaves_or_joins_meanwhile_is_not_joined_for_it(main: Joining) -> None:
    def meanwhile() -> None:
        main.session.subscriptions.pop(SHARES[1], None)
        main.windows[SHARES[2]] = "its own"

    main.meanwhile = meanwhile  # type: ignore[method-assign]  # of this one alone
    await again(main)
    assert main.asked == SHARES[:1]


async def test_where_there_are_too_many_shares_the_others_are_joined_and_it_waits_for_room(main: Joining) -> None:
    """The connection would end, and the client come back for the same end, whatever else its session has."""
    main.full = [SHARES[0], SHARES[0]]
    await again(main)
    assert main.windows.keys() == set(SHARES)
    assert main.asked == [*SHARES, SHARES[0], SHARES[0]]


async def test_a_connection_that_has_ended_waits_no_more(main: Joining) -> None:
    main.full = [SHARES[0]] * 9

    def meanwhile() -> None:
        main.closed = True

    main.meanwhile = meanwhile  # type: ignore[method-assign]  # of this one alone
    await again(main)
    assert main.asked == SHARES[:2]
