"""Sessions as records, with what a test does not care about filled in."""

from __future__ import annotations

from lexicast.cluster.records import SessionSaved


def saved_session(
    client_id: str = "c",
    uid: bytes = b"u",
    generation: int = 1,
    owner: str = "b",
    incarnation: int = 1,
    expires_us: int = 0,
    place: bytes = b"place",
) -> SessionSaved:
    """A session that is kept for an hour, without a will."""
    return SessionSaved(client_id, uid, generation, owner, incarnation, 1, 3_600, expires_us, 0, b"filters", b"", place)
