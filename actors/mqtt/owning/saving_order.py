"""Which of a broker's sessions are saved next: the most unsaved, by what was sent since. Pure.

Looking at all sessions in every round would cost more than what is saved. So only those that got something since they
were saved are known by name (`sent_to`); of these the most unsaved are chosen for the next ROUNDS_CHOSEN rounds at
once, and the order is looked at again when they are saved. What was saved of a session that got nothing will do for
STALE_S; who is older is looked for every STALE_LOOK_S.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Mapping
from typing import Final, Protocol

from ..session import Session

STALE_S: Final = 600.0
STALE_LOOK_S: Final = 60.0
# How long a session that is being brought up is not saved again: a moment later it stands somewhere else.
LAGGING_S: Final = 10.0
ROUNDS_CHOSEN: Final = 10
STEP: Final = 500


class LaggingGroups(Protocol):
    """A session's subscriber: the groups in which it lags."""

    lagging: dict[int, int]


class Saved(Protocol):
    """Whoever serves a session, which knows when it was saved."""

    @property
    def session(self) -> Session:
        """The session."""

    @property
    def subscriber(self) -> LaggingGroups:
        """Its subscriber."""


class SavingOrder:
    """See the module's docstring. At most an entry for each session that is served, and those that have left since."""

    def __init__(self) -> None:
        self._unsaved: dict[str, None] = {}
        # The next ones, the most unsaved last.
        self._chosen: list[str] = []
        self._stale_look_s = 0.0

    def sent_to(self, client_ids: Mapping[str, None]) -> None:
        """These sessions may have got something that is not saved."""
        self._unsaved.update(client_ids)

    def left(self, client_id: str) -> None:
        """The session is not served here any more."""
        self._unsaved.pop(client_id, None)

    def choosing(
        self, owners: Mapping[str, Saved], now_s: float, most: int, saving: Container[str] = ()
    ) -> Iterator[None]:
        """Before `take`, with the same arguments: choose where none are left of those chosen before, in steps of STEP
        sessions. `owners`: all that are served; `saving`: those whose save is under way; `most`: to be taken a round.
        """
        if now_s >= self._stale_look_s:
            self._stale_look_s = now_s + STALE_LOOK_S
            stale = [name for name, owner in owners.items() if now_s - owner.session.saved_s >= STALE_S]
            self._unsaved.update(dict.fromkeys(stale))
            yield
        if self._chosen or not most:
            return
        found: list[tuple[int, float, str]] = []
        looked_at, room = list(self._unsaved), most * ROUNDS_CHOSEN
        for at in range(0, len(looked_at), STEP):
            for client_id in looked_at[at : at + STEP]:
                owner = owners.get(client_id)
                if owner is None or not _is_unsaved(owner.session, now_s):
                    self.left(client_id)
                elif client_id not in saving and _is_due(owner, now_s):
                    session = owner.session
                    entry = session.sent - session.sent_saved, now_s - session.saved_s, client_id
                    if len(found) < room:
                        heapq.heappush(found, entry)
                    elif entry > found[0]:
                        heapq.heapreplace(found, entry)
            yield
        found.sort()
        self._chosen = [client_id for _, _, client_id in found]

    def take(self, owners: Mapping[str, Saved], now_s: float, most: int, saving: Container[str] = ()) -> list[str]:
        """The client ids to save in this round, the most unsaved first."""
        taken: list[str] = []
        while self._chosen and len(taken) < most:
            client_id = self._chosen.pop()
            owner = owners.get(client_id)
            if owner is not None and client_id not in saving and _is_due(owner, now_s):
                taken.append(client_id)
        return taken


def _is_unsaved(session: Session, now_s: float) -> bool:
    """Whether it is to be saved one day soon. One that ends with its connection never is."""
    return session.expiry_s > 0 and (session.sent > session.sent_saved or now_s - session.saved_s >= STALE_S)


def _is_due(owner: Saved, now_s: float) -> bool:
    """Whether it is to be saved now."""
    session = owner.session
    return _is_unsaved(session, now_s) and not (owner.subscriber.lagging and now_s - session.saved_s < LAGGING_S)
