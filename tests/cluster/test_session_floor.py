"""The floor of a broker's sessions: what is said of one is never beyond what it has acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.protocol import session_floor
from lexicast.cluster.protocol.session_floor import SessionFloor, Standing, frontier_of, packed_exceptions
from lexicast.cluster.records import SessionSaved

from ..support.session_rows import saved_session


def served(connection: int) -> SessionSaved:
    return saved_session()._replace(connection=connection)


def test_the_floor_passes_what_was_in_flight_for_a_moment_and_leaves_behind_what_stays() -> None:
    floor = SessionFloor()
    assert floor.move({1: 100}, []) == {}
    assert floor.move({1: 110}, [(7, {1: 104})]) == {}
    assert floor.floor == {1: 104}
    assert floor.move({1: 120}, [(7, {1: 104}), (8, {1: 118})]) == {7: {1: 104}}
    assert floor.floor == {1: 118}
    assert floor.move({1: 130, 2: 5}, []) == {}
    assert floor.floor == {1: 130, 2: 5}


def test_of_more_than_can_be_told_nothing_is_known() -> None:
    floor = SessionFloor()
    floor.move(dict.fromkeys(range(100), 10), [])
    behind = dict.fromkeys(range(100), 5)
    many = session_floor.EXCEPTION_OFFSETS_MAX // 100 + 2
    exceptions = floor.move(dict.fromkeys(range(100), 20), [(number, behind) for number in range(many)])
    standing = Standing(many, floor.floor, packed_exceptions(exceptions))
    assert [number for number in range(many) if exceptions[number] is None] == [many - 2, many - 1]
    assert standing.of(served(0)) == behind
    assert standing.of(served(many - 1)) == {}


def test_an_exception_that_cannot_be_read_says_nothing() -> None:
    assert packed_exceptions({1: {2: 3}, 4: None}) == {1: b"\x81\x02\x03", 4: None}
    assert frontier_of(b"\x81\x02\x03") == {2: 3}
    for bad in (b"", b"\x81\x02", b"\x93\x01\x02\x03", b"\x81\x02\xff", b"\x81\x02\xc3", b"\x81\x90\x01", b"\xc1"):
        assert frontier_of(bad) is None
    assert Standing(9, {2: 7}, {5: b"\xc1"}).of(served(5)) == {}


def test_of_whom_nobody_looked_at_nothing_is_known_and_it_holds_nobody_back() -> None:
    floor = SessionFloor()
    exceptions = floor.move({1: 100}, [(7, None), (8, {1: 90})])
    assert exceptions == {7: None}
    assert floor.floor == {1: 90}
    assert Standing(9, floor.floor, packed_exceptions(exceptions)).of(served(7)) == {}


@dataclass
class Client:
    """What a session has not acknowledged, by group."""

    open: dict[int, set[int]] = field(default_factory=dict)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("acknowledge"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("round"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_whatever_happens_no_session_is_said_to_have_more_than_it_acknowledged(
    script: list[tuple[str, int, int]],
) -> None:
    floor, heads = SessionFloor(), {0: 0, 1: 0, 2: 0}
    clients = {number: Client() for number in range(4)}
    for what, group, number in script:
        waiting = clients[number].open.setdefault(group, set())
        if what == "deliver":
            waiting.add(heads[group])
            heads[group] += 1
        elif what == "acknowledge" and waiting:
            waiting.discard(max(waiting))
        elif what == "round":
            before = dict(floor.floor)
            frontiers = [
                (n, {g: min(offsets) for g, offsets in client.open.items() if offsets}) for n, client in clients.items()
            ]
            exceptions = floor.move(dict(heads), [(n, found) for n, found in frontiers if found])
            standing = Standing(len(clients), floor.floor, packed_exceptions(exceptions))
            assert all(offset >= before.get(g, 0) for g, offset in floor.floor.items())
            for n, client in clients.items():
                said = standing.of(served(n))
                for g, offsets in client.open.items():
                    assert said[g] <= min(offsets, default=heads[g])
