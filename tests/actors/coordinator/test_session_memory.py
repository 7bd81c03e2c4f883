"""The sessions that their home remembers: each read once, as many as there is room for."""

from __future__ import annotations

from lexicast.actors.coordinator.session_memory import SESSION_MEMORY_BYTES, SessionMemory
from lexicast.cluster.records import SessionSaved

from ...support.session_rows import saved_session


class Rows:
    """A store that counts who asks."""

    def __init__(self, *client_ids: str) -> None:
        self.rows = {(7, name): saved_session(name) for name in client_ids}
        self.asked: list[str] = []

    def read(self, group: int, client_id: str) -> SessionSaved | None:
        self.asked.append(client_id)
        return self.rows.get((group, client_id))


def test_a_session_is_read_once_and_then_known_as_it_was_written() -> None:
    rows = Rows("a")
    memory = SessionMemory(rows.read)
    assert [memory.get((7, "a")) for _ in range(3)] == [saved_session("a")] * 3
    assert [memory.get((7, "none")) for _ in range(2)] == [None, None]
    memory.put((7, "a"), saved_session("a", generation=2))
    memory.put((7, "none"), saved_session("none"))
    assert memory.get((7, "a")) == saved_session("a", generation=2)
    assert memory.get((7, "none")) == saved_session("none")
    assert rows.asked == ["a", "none"]


def test_what_is_forgotten_is_read_again() -> None:
    rows = Rows("a")
    memory = SessionMemory(rows.read)
    memory.put((7, "a"), None)
    memory.forget((7, "a"))
    memory.forget((7, "b"))
    assert memory.get((7, "a")) == saved_session("a")
    assert rows.asked == ["a"]


def test_those_asked_for_longest_ago_make_room() -> None:
    rows = Rows("a", "b", "c")
    memory = SessionMemory(rows.read, 2 * (SESSION_MEMORY_BYTES + 100))
    for name in "abacab":
        memory.get((7, name))
    assert rows.asked == ["a", "b", "c", "b"]


def test_one_too_large_is_not_kept_and_takes_no_room() -> None:
    rows = Rows("a")
    memory = SessionMemory(rows.read, SESSION_MEMORY_BYTES + 100)
    memory.put((7, "large"), saved_session("large", place=bytes(1_000)))
    memory.get((7, "a"))
    memory.get((7, "a"))
    assert rows.asked == ["a"]
