"""The sender's half of QoS 1 and 2: whatever the other side answers, and however often the connection ends, nothing is
left undone and no packet id is in use twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.bridge.dealt_positions import DealtPositions, ranges
from lexicast.actors.bridge.sent_publications import Form, Outbound, SentPublications

FORMS = [Form(b"a", qos, False, b"", True) for qos in range(3)]


def message(number: int, qos: int = 1) -> Outbound:
    return Outbound(FORMS[qos], b"%d" % number, (0, 0, number))


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["send", "ack", "cut", "lose"]), st.integers(0, 4), st.integers(1, 2))),
)
def test_all_is_done_once_in_the_end(limit: int, events: list[tuple[str, int, int]]) -> None:
    sent, done, number = SentPublications(limit), [], 0
    published: dict[int, Outbound] = {}
    released: dict[int, Outbound] = {}

    def answer(at: int) -> None:
        if published and at % 2 == 0:
            packet_id = list(published)[at % len(published)]
            found = published.pop(packet_id)
            if found.form.qos == 1:
                done.extend(sent.acknowledged([packet_id]))
            else:
                sent.taken([packet_id])
                released[packet_id] = found
        elif released:
            packet_id = list(released)[at % len(released)]
            del released[packet_id]
            done.extend(sent.completed([packet_id]))

    for kind, at, qos in events:
        if kind == "send" and sent.room:
            ((packet_id, _),) = sent.add([message(number, qos)])
            assert packet_id not in {*published, *released}
            assert packet_id in sent.all_ids()
            published[packet_id] = message(number, qos)
            number += 1
        elif kind == "ack":
            answer(at)
        elif kind in ("cut", "lose"):
            done.extend(sent.connected(limit, kind == "cut"))
            if kind == "lose":
                released.clear()
            assert sent.again() == (list(released), list(published.items()))
        assert len(sent) == len(published) + len(released) <= limit
    while published or released:
        answer(0)
        answer(1)
    assert sorted(each.place[2] for each in done) == list(range(number))


def test_what_the_other_side_takes_counts_where_it_is_less() -> None:
    sent = SentPublications(10)
    sent.connected(1, False)
    assert sent.add([message(0), message(1, qos=0)]) == [(1, message(0)), (0, message(1, qos=0))]
    assert sent.room == 0
    with pytest.raises(ValueError, match="under way"):
        sent.add([message(2)])


def test_an_answer_that_nobody_waits_for_is_passed_over() -> None:
    sent = SentPublications(2)
    sent.taken([7])
    assert sent.acknowledged([7]) == sent.completed([7]) == []


def test_what_is_dealt_again_is_not_sent_again_while_it_is_under_way_or_done_lately() -> None:
    dealt = DealtPositions(done_max=4)
    places = [(0, 1, offset) for offset in range(6)]
    assert all(dealt.take(places))
    dealt.done(places[:3])
    assert [dealt.is_done(place) for place in places] == [True] * 3 + [False] * 3
    assert dealt.take([places[0], places[3], (0, 1, 9), (0, 1, 9)]) == [False, False, True, False]
    assert dealt.repeats == 3
    assert len(dealt) == 4


def test_what_was_done_long_ago_is_forgotten() -> None:
    dealt = DealtPositions(done_max=4)
    places = [(0, 1, offset) for offset in range(6)]
    dealt.take(places)
    for place in places:
        dealt.done([place])
    assert [dealt.is_done(place) for place in places] == [False] * 2 + [True] * 4


def test_neighbours_are_told_as_ranges() -> None:
    places = [(7, group, offset) for group, offset in [(1, 5), (0, 2), (0, 1), (1, 7), (0, 3), (1, 6), (0, 3), (1, 9)]]
    assert ranges(places) == [(0, 1, 3), (1, 5, 7), (1, 9, 9)]
    assert ranges([]) == []
