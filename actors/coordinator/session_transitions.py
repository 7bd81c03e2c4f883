"""The transitions of a session: its connection ends, or another one comes. Pure: rows and times in, rows out.

    served      owner, connection; its will, if it has one, is armed
      | DISCONNECT, or the connection is lost        (the owner says so: `SessionHome.save`, `SessionHome.end`)
      | the owner is gone, and nobody says anything  (`orphaned`)
      v
    away        expires_us, will_us: the will that waits
      | a connection takes it up (`continues`): the will that waits is not published     [MQTT-3.1.3-9]
      | will_us comes: it is published; expires_us comes: the session is forgotten       [MQTT-3.1.2-23]

A session that does not continue ends, and a will that waits is due then, whatever its delay. A session with expiry 0
ends with its connection, also where it ends because another one takes its place [MQTT-3.1.2-6], [MQTT-3.1.4-3].
"""

from __future__ import annotations

from collections.abc import Mapping

from lexicast.cluster.clock import US_PER_S
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.sessions import session_expires_us
from lexicast.cluster.records import SessionEnded, SessionMoved, SessionSaved

from ..mqtt.session_state import left_behind, will_delay_s, will_of


def has_expired(session: SessionSaved, now_us: int) -> bool:
    """Whether its time is over."""
    return 0 < session.expires_us <= now_us


def belongs_elsewhere(session: SessionSaved | None, user: str, over: str, now_us: int) -> bool:
    """Whether a new connection of `user` may not have the session, nor end it: it is another user's.

    One of nobody's may be ended by a user, who has as much right to it; `over`: one whose session is nobody's by now.
    """
    if session is None or has_expired(session, now_us):
        return False
    return session.user not in ("", user, over)


def continues(session: SessionSaved | None, user: str, clean: bool, now_us: int) -> bool:
    """Whether a new connection of `user` goes on with the session: whoever left it has chosen what it subscribes to."""
    if session is None or clean or session.user != user:
        return False
    return session.expiry_s > 0 and not has_expired(session, now_us)


def delay_s(session: SessionSaved) -> int:
    """The delay of its will; that of one that cannot be read is 0."""
    try:
        return min(will_delay_s(will_of(session.will)), session.expiry_s)
    except PeerError:
        return 0


def due_will(session: SessionSaved, goes_on: bool, now_us: int) -> bytes:
    """The will that is due as a new connection comes, b"" when none is. A served session's owner is gone, and has
    published nothing."""
    if session.owner:
        waits = goes_on and delay_s(session) > 0
        return b"" if waits else session.will
    armed = session.will_us > 0
    return session.will if armed and (not goes_on or session.will_us <= now_us) else b""


def orphaned(session: SessionSaved, at_us: int, floor: Mapping[int, int]) -> SessionSaved:
    """A served session whose owner went at `at_us`: nobody's, in a generation of its own, so that an owner that was
    only cut off finds that it has lost it."""
    return session._replace(
        generation=session.generation + 1,
        owner="",
        incarnation=0,
        connection=0,
        expires_us=session_expires_us(session.expiry_s, at_us),
        will_us=at_us + delay_s(session) * US_PER_S if session.will else 0,
        place=moved_on(session.place, floor),
    )


def moved_on(place: bytes, floor: Mapping[int, int]) -> bytes:
    """`left_behind`, or the place as it is where it cannot be read: whoever takes the session up will tell."""
    try:
        return left_behind(place, floor)
    except PeerError:
        return place


def record_of(before: SessionSaved | None, after: SessionSaved | None) -> SessionSaved | SessionMoved | SessionEnded:
    """The smallest record that makes `after` of `before` (None: there is no session). One of the two is a session."""
    if after is None:
        assert before is not None
        return SessionEnded(before.client_id, before.uid, before.generation)
    if before is None or _identity(before) != _identity(after):
        return after
    place = b"" if after.place == before.place else after.place
    return SessionMoved(
        after.client_id,
        after.generation,
        after.owner,
        after.incarnation,
        after.connection,
        after.expiry_s,
        after.expires_us,
        after.will_us,
        place,
    )


def _identity(session: SessionSaved) -> tuple[bytes, bytes, bytes, str]:
    """What SessionMoved does not tell."""
    return session.uid, session.filters, session.will, session.user
