"""The session core, event by event: acknowledgements, resends, receive maximum, overlapping subscriptions, state."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.mqtt import session_state
from lexicast.actors.mqtt.codec.packets import (
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    AckRun,
    MqttProtocolError,
    PubComp,
    PubRel,
    SubscriptionOptions,
    Will,
)
from lexicast.actors.mqtt.session import Arrived, ReleasedIds, Resend, Session, SessionSubscription
from lexicast.actors.mqtt.session_state import (
    FORMAT,
    IDS_SKIPPED,
    filters_of,
    left_behind,
    place_of,
    restore,
    restoring,
    will_bytes,
    will_delay_s,
    will_of,
    writing_filters,
)
from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.positions import EPOCH_OFFSET_GAP


def session(version: int = V5, window: int = 10, receive_max: int = 10) -> Session:
    made = Session("client", b"uid", 1, inflight_max=window, receive_max=receive_max, subscriptions_max=3)
    assert made.connected(version) == []
    return made


# -- out


def test_send_stops_at_the_smaller_window() -> None:
    one = session(window=5)
    one.connected(V5, receive_maximum=3)
    assert one.send(7, range(100, 110), 1) == [1, 2, 3]
    assert (one.room, one.send(7, [103], 1)) == (0, [])
    assert one.on_pubacks([2, 3]) == 2
    assert one.send(7, range(103, 110), 1) == [4, 5]
    one.connected(V5, receive_maximum=50)
    assert one.window == 5


@pytest.mark.mqtt("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
def test_packet_ids_wrap_and_skip_those_in_use() -> None:
    one = session()
    assert one.send(1, [1, 2], 1) == [1, 2]
    one.next_id = 65_534
    assert one.send(1, [3, 4, 5], 2) == [65_534, 65_535, 3]
    one.next_id = 65_535
    assert one.take_ids(2) == [4, 5]
    assert one.take_ids(1) == [6]
    one.connected(V5)
    one.next_id = 1
    assert one.take_ids(1) == [4]  # 1, 2 and 3 wait to be sent again
    one.on_pubrecs([3])
    one.next_id = 1
    assert one.take_ids(1) == [4]  # 3 is released and not completed


@given(
    st.lists(st.tuples(st.sampled_from(["send", "acknowledge", "release", "again"]), st.integers(0, 3)), max_size=30),
    st.sampled_from([1, 3, 65_533, 65_535]),
)
def test_one_is_sent_as_a_run_of_one(steps: list[tuple[str, int]], next_id: int) -> None:
    one, run = session(window=5), session(window=5)
    one.next_id = run.next_id = next_id
    for offset, (step, number) in enumerate(steps):
        if step == "send":
            qos = 1 + number % 2
            sent = one.send_one(7, offset, qos, number > 1)
            assert ([sent] if sent else []) == run.send(7, [offset], qos, number > 1)
        for each in (one, run):
            waiting = {qos: [i for i, sent in each.unacknowledged.items() if sent[2] == qos] for qos in (1, 2)}
            if step == "acknowledge":
                each.on_pubacks(waiting[1][:number])
            elif step == "release":
                each.on_pubrecs(waiting[2][:number])
            elif step == "again":
                each.connected(V5)
                each.next_id = next_id
        assert one == run


def test_no_more_packet_ids_than_there_are() -> None:
    one = Session("c", b"u", 1, inflight_max=65_535)
    one.connected(V5)
    assert sorted(one.send(1, range(70_000), 1)) == list(range(1, 65_536))
    with pytest.raises(UsageError, match="0 are free"):
        one.take_ids(1)


def test_what_is_held_is_the_lowest_offset_in_flight_of_each_group() -> None:
    one = session()
    one.send(1, [10, 11], 1)
    one.send(2, [5], 2)
    one.send(1, [3], 1, retained=True)
    assert one.held() == {1: 10, 2: 5}
    one.on_pubacks([1])
    one.on_pubrecs([3])
    assert one.held() == {1: 11, 2: 5}  # QoS 2 until its PUBCOMP
    one.on_pubcomps([3])
    one.connected(V5)
    assert one.held() == {1: 11}


@pytest.mark.mqtt("MQTT-4.3.3-3", "MQTT-4.3.3-4", "MQTT-4.3.3-5")
def test_qos2_goes_through_release_to_completion() -> None:
    one = session(window=1)
    assert one.send(1, [10], 2) == [1]
    assert one.on_pubrecs([1]) == [AckRun(PUBREL, [1])]
    assert one.room == 0
    assert one.on_pubrecs([1]) == [AckRun(PUBREL, [1])]  # a repeated PUBREC
    assert one.on_pubcomps([1, 9]) == 1
    assert (one.room, one.in_flight) == (1, 0)


@pytest.mark.mqtt("MQTT-4.4.0-2")
def test_refused_pubrec_ends_the_publication() -> None:
    one = session()
    one.send(1, [10], 2)
    assert one.on_pubrecs([1], refused=True) == []
    assert one.in_flight == 0


@pytest.mark.mqtt("MQTT-3.6.2-1")
def test_unknown_pubrec_is_answered_in_the_versions_words() -> None:
    assert session(V5).on_pubrecs([8, 9]) == [PubRel(8, 0x92), PubRel(9, 0x92)]
    assert session(V311).on_pubrecs([8]) == [AckRun(PUBREL, [8])]
    assert session().on_pubacks([8]) == 0


def test_acknowledgement_of_the_wrong_kind_is_a_protocol_error() -> None:
    one = session()
    one.send(1, [1], 1)
    one.send(1, [2], 2)
    with pytest.raises(MqttProtocolError) as caught:
        one.on_pubrecs([1])
    assert caught.value.reason_code == 0x82
    with pytest.raises(MqttProtocolError):
        one.on_pubacks([2])


@pytest.mark.mqtt("MQTT-4.3.3-6", "MQTT-4.4.0-1")
def test_reconnect_resends_in_order_and_within_the_window() -> None:
    one = session()
    one.send(1, [10, 11, 12], 1)
    one.send(2, [5, 6], 2)
    one.on_pubacks([2])
    one.on_pubrecs([5])
    assert one.connected(V5, receive_maximum=2) == [AckRun(PUBREL, [5])]
    assert one.send(1, [13], 1) == []
    assert one.resend() == [Resend(1, 1, 10, 1, False)]
    assert one.resend() == []
    one.on_pubacks([1])
    one.on_pubcomps([5])
    # the connection breaks again, half way
    assert one.resend() == [Resend(3, 1, 12, 1, False), Resend(4, 2, 5, 2, False)]
    one.connected(V5)
    assert one.resend() == [Resend(3, 1, 12, 1, False), Resend(4, 2, 5, 2, False)]
    assert one.send(1, [13], 1) == [6]


def test_abandoned_publications_free_their_ids() -> None:
    one = session()
    one.send(1, [10, 11], 1)
    one.connected(V5)
    one.abandon([1])
    assert one.resend() == [Resend(2, 1, 11, 1, False)]
    one.abandon([2])
    assert (one.in_flight, one.held()) == (0, {})


@pytest.mark.parametrize("maximum", [0, 65_536])
def test_impossible_receive_maximum_is_refused(maximum: int) -> None:
    with pytest.raises(UsageError):
        session().connected(V5, maximum)


# -- in


@pytest.mark.mqtt("MQTT-4.3.3-10", "MQTT-4.3.3-12")
def test_qos2_from_the_client_is_published_once() -> None:
    one = session()
    assert one.on_publishes(2, [1, 2], 7) == Arrived(None, [])
    assert one.on_publishes(2, [2, 3], 7) == Arrived([1], [])  # 2 is on its way: PUBREC follows
    one.committed(2, [1, 2, 3])
    assert one.on_publishes(2, [1, 4], 7) == Arrived([1], [AckRun(PUBREC, [1])])
    assert one.on_pubrels([1, 2, 3]) == ReleasedIds([AckRun(PUBCOMP, [1, 2, 3])], {7: [1, 2, 3]})
    assert one.on_publishes(2, [1], 8) == Arrived(None, [])  # [MQTT-4.3.3-12]: a new publication


@pytest.mark.mqtt("MQTT-4.3.3-9")
def test_refused_publication_may_be_sent_again() -> None:
    one = session()
    one.on_publishes(2, [1], 7)
    one.refused(2, [1])
    assert one.on_publishes(2, [1], 7) == Arrived(None, [])


@pytest.mark.mqtt("MQTT-3.7.2-1")
def test_unknown_pubrel_is_answered_in_the_versions_words() -> None:
    assert session(V5).on_pubrels([9]) == ReleasedIds([PubComp(9, 0x92)], {})
    assert session(V5).on_pubrels([9], resumed=True) == ReleasedIds([AckRun(PUBCOMP, [9])], {})
    assert session(V311).on_pubrels([9]) == ReleasedIds([AckRun(PUBCOMP, [9])], {})


def test_pubrel_before_pubrec_is_a_protocol_error() -> None:
    one = session()
    one.on_publishes(2, [1], 7)
    with pytest.raises(MqttProtocolError):
        one.on_pubrels([1])


def test_receive_maximum_is_enforced_for_version_5_alone() -> None:
    one = session(receive_max=3)
    one.on_publishes(1, [1, 2], 7)
    one.on_publishes(2, [3], 7)
    one.committed(1, [1])
    one.on_publishes(1, [4], 7)
    with pytest.raises(MqttProtocolError) as caught:
        one.on_publishes(2, [5], 7)
    assert caught.value.reason_code == 0x93
    old = session(V311, receive_max=3)
    assert old.on_publishes(1, list(range(1, 100)), 7) == Arrived(None, [])


def test_ids_of_an_earlier_connection_do_not_count_until_sent_again() -> None:
    one = session(receive_max=3)
    one.on_publishes(2, [1, 2], 7)
    one.committed(2, [1, 2])
    one.connected(V5)
    one.on_publishes(2, [3, 4, 5], 7)
    with pytest.raises(MqttProtocolError):
        one.on_publishes(2, [1], 7)
    again = session(receive_max=3)
    again.on_publishes(2, [1], 7)
    again.committed(2, [1])
    again.connected(V5)
    again.on_pubrels([1])
    again.on_publishes(2, [1, 2, 3], 7)
    with pytest.raises(MqttProtocolError):
        again.on_publishes(1, [4], 7)


# -- subscriptions


def test_subscribe_replaces_and_says_what_retained_messages_go_out() -> None:
    one = session()
    assert one.subscribe(b"a", SubscriptionOptions(1), 5) == (1, False, True)
    assert one.subscribe(b"a", SubscriptionOptions(2, retain_handling=0)) == (2, True, True)
    assert one.subscribe(b"a", SubscriptionOptions(0, retain_handling=1)) == (0, True, False)
    assert one.subscribe(b"b", SubscriptionOptions(0, retain_handling=1)) == (0, False, True)
    assert one.subscribe(b"$share/g/c", SubscriptionOptions(0), shared=True) == (0, False, False)
    assert one.subscribe(b"d", SubscriptionOptions(0)) == (0x97, False, False)
    assert one.subscriptions[b"a"] == SessionSubscription(0, retain_handling=1)
    assert (one.unsubscribe(b"a"), one.unsubscribe(b"a")) == (True, False)


# -- state


def busy_session() -> Session:
    one = session()
    one.expiry_s = 3600
    one.will = Will(b"w", b"bye", 1, True, {24: 5, 38: [("k", "v")]})
    one.subscribe(b"a/+", SubscriptionOptions(2, True, True, 1), 9)
    one.cursor = {1: 12, 9: 2**40}
    one.send(1, [10, 11], 1)
    one.send(1, [4], 1, retained=True)
    one.send(2, [7, 8], 2)
    one.on_pubrecs([4])
    one.on_publishes(2, [1, 2], 7)
    one.committed(2, [1])
    return one


def test_state_goes_on_where_it_was_left() -> None:
    before = busy_session()
    after = Session("client", b"uid", 2)
    restore(after, filters_of(before), place_of(before, handed_over=True))
    assert (after.subscriptions, after.cursor, after.received) == (before.subscriptions, before.cursor, {1: 7})
    assert will_of(will_bytes(before.will)) == before.will
    assert after.connected(V5) == before.connected(V5) == [AckRun(PUBREL, [4])]
    assert after.resend() == before.resend()
    assert after.send(1, [50], 1) == before.send(1, [50], 1)
    assert (filters_of(after), place_of(after)) == (filters_of(before), place_of(before))


def test_sessions_left_at_one_place_share_its_cursor_and_nothing_else() -> None:
    cursor = {group: group + 70_000 for group in range(100)}
    sessions = []
    for next_id in (1, 127, 128, 255, 256, 65_535):
        left = Session("a", b"uid", 7, next_id=next_id, cursor=dict(cursor))
        session = Session("a", b"uid", 8)
        restore(session, filters_of(left), place_of(left))
        assert (session.next_id, session.cursor) == (next_id, cursor)
        sessions.append(session)
    assert len({id(session.cursor) for session in sessions}) == 1
    sessions[0].pending[1] = (1, 2, 1, False)
    assert not any(session.pending for session in sessions[1:])
    busy = Session("a", b"uid", 7, cursor=dict(cursor), unacknowledged={5: (1, 2, 1, False)})
    restore(sessions[0], filters_of(busy), place_of(busy))
    assert sessions[0].pending == busy.unacknowledged


def test_what_is_retained_and_not_sent_yet_is_owed_to_the_next_connection() -> None:
    one = busy_session()
    one.subscribe(b"b/#", SubscriptionOptions(1))
    one.subscribe(b"c", SubscriptionOptions(1))
    plain = filters_of(one)
    one.owe([b"b/#", b"c", b"left meanwhile"])
    one.unsubscribe(b"c")
    after = Session("client", b"uid", 2)
    restore(after, filters_of(one), place_of(one))
    assert after.owed == one.owed == {b"b/#"}
    assert filters_of(after) == filters_of(one)
    one.subscribe(b"c", SubscriptionOptions(1))
    one.paid()
    assert filters_of(one) == plain  # and costs nothing in the log where all has been sent


def test_state_half_resent_keeps_the_order() -> None:
    one = session()
    one.send(1, [10, 11, 12], 1)
    one.connected(V5, receive_maximum=2)
    one.resend()
    after = Session("client", b"uid", 2)
    restore(after, filters_of(one), place_of(one))
    after.connected(V5)
    assert [again.offset for again in after.resend()] == [10, 11, 12]


@given(st.dictionaries(st.integers(0, 300), st.integers(0, 2**63 - 1) | st.integers(0, 1_000), max_size=60))
def test_a_cursor_is_restored_wherever_it_stands(cursor: dict[int, int]) -> None:
    one, after = session(), Session("client", b"uid", 2)
    one.cursor = cursor
    restore(after, filters_of(one), place_of(one))
    assert after.cursor == cursor


def test_a_wildcard_in_a_hundred_groups_takes_few_bytes_in_the_log() -> None:
    one = session()
    one.cursor = {group: 900 + group for group in range(100)}
    assert len(place_of(one)) < 120
    one.cursor = {group: 3 * EPOCH_OFFSET_GAP + group % 7 for group in range(100)}  # after failovers
    assert len(place_of(one)) < 120


@pytest.mark.parametrize(
    "columns",
    [
        7,
        [],
        [[], 0, 0],
        [[], 0, 0, b"x"],
        [[0, 1], 0, 0, b""],
        [[0, 1], 0, 0, b"abc"],
        [[0], 0, 0, b"x"],
        [[0, 2], 0, 0, b"x"],
        [[0, 1 << 40], 0, 0, b"x"],
        [[0, -1], 0, 0, b"x"],
        [[0, 1], -1, 0, b"x"],
        [[0, 1], [1, 2], 0, b"x"],
        [[0, 1], 2**62, 0, b"x"],
        [[0, 1], None, 0, b"x"],
        [[0, "1"], 0, 0, b"x"],
        [[0, 1], 0, True, b"x"],
        [[0, 1], 0, 0, [1]],
    ],
)
def test_a_cursor_that_is_none_is_refused(columns: Any) -> None:
    place = msgpack.packb((FORMAT, 1, columns, [], [], []))
    with pytest.raises(PeerError):
        restore(session(), filters_of(session()), place)


def test_ids_that_were_received_are_never_restored_from_a_place_that_was_not_handed_over() -> None:
    """Between the save and the broker's death they may have been released, and given to other publications."""
    after = Session("client", b"uid", 2)
    restore(after, filters_of(busy_session()), place_of(busy_session()))
    assert after.received == {}
    handed_over = place_of(busy_session(), handed_over=True)
    restore(after, filters_of(busy_session()), left_behind(handed_over, {}))
    assert after.received == {}
    after.connected(V5)
    assert after.on_publishes(2, [1], 7) == Arrived(None, [])  # to be published: its group knows whether it was


def test_packet_ids_go_on_far_beyond_a_place_that_was_left_behind() -> None:
    before, after = busy_session(), Session("client", b"uid", 2)
    place = place_of(before)
    given_since = [before.take_ids(1)[0] for _ in range(1_000)]
    restore(after, filters_of(before), left_behind(place, {}))
    assert set(after.take_ids(IDS_SKIPPED - 1_000)).isdisjoint(given_since)
    before.next_id = 65_000
    restore(after, filters_of(before), left_behind(place_of(before), {}))
    assert after.next_id == 65_000 + IDS_SKIPPED - 65_535


def test_what_is_known_to_be_acknowledged_is_not_sent_again() -> None:
    before, after = busy_session(), Session("client", b"uid", 2)
    before.cursor = {1: 12, 2: 5, 9: 2**40}
    restore(after, filters_of(before), left_behind(place_of(before), {1: 11, 2: 9, 8: 99}))
    assert after.cursor == {1: 12, 2: 9, 9: 2**40}
    assert [(e[0], e[1]) for e in after.pending.values()] == [(1, 11), (1, 4)]  # the latter was sent as retained
    assert after.released == {}


def test_a_will_waits_for_its_delay_and_none_for_none() -> None:
    assert will_delay_s(busy_session().will) == 5
    assert (will_delay_s(None), will_bytes(None), will_of(b"")) == (0, b"", None)


@settings(max_examples=300)
@given(st.data())
def test_garbage_state_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    filters, place = filters_of(busy_session()), place_of(busy_session(), handed_over=True)
    good = data.draw(st.sampled_from([filters, place]))
    kind = data.draw(st.sampled_from(["bytes", "cut", "flip", "field"]))
    if kind == "bytes":
        bad = data.draw(st.binary(max_size=80))
    elif kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "flip":
        at = data.draw(st.integers(0, len(good) - 1))
        bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    else:
        fields = list(msgpack.unpackb(good, use_list=False))
        odd = st.none() | st.integers(-5, 2**64 - 1) | st.text(max_size=3) | st.booleans()
        at = data.draw(st.integers(0, len(fields) - 1))
        fields[at] = data.draw(odd | st.lists(odd, max_size=3) | st.lists(st.lists(odd)))
        bad = msgpack.packb(fields)
    one = Session("client", b"uid", 1)
    try:
        restore(one, bad, place) if good is filters else restore(one, filters, bad)
    except PeerError:
        assert one == Session("client", b"uid", 1)
    else:
        assert filters_of(one)  # a flipped bit may give another valid state: it must then be usable
        assert place_of(one)
        one.connected(V5)
        one.resend()


@settings(max_examples=200)
@given(st.data())
def test_a_will_that_cannot_be_read_is_a_peer_error(data: st.DataObject) -> None:
    good = will_bytes(busy_session().will)
    at = data.draw(st.integers(0, len(good) - 1))
    with suppress(PeerError):
        will_of(good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :])
    with pytest.raises(PeerError):
        will_of(good[:at] or b"junk")


def test_many_subscriptions_are_read_and_written_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "STEP", 3)
    one = Session("client", b"uid", 1)
    for number in range(8):
        one.subscribe(b"a/%d" % number, SubscriptionOptions(number % 3, bool(number % 2)), number or None)
    assert len([*writing_filters(one)]) == 3
    written = filters_of(one)
    assert msgpack.unpackb(written) == [FORMAT, [[name, *options[:-1]] for name, options in one.subscriptions.items()]]
    assert filters_of(one) is written  # kept
    after = Session("client", b"uid", 2)
    assert len([*restoring(after, written, place_of(one))]) == 3
    assert after.subscriptions == one.subscriptions
    assert filters_of(after) is written
    after.unsubscribe(b"a/0")
    assert filters_of(after) == msgpack.packb(
        (FORMAT, [(name, *options[:-1]) for name, options in after.subscriptions.items()])
    )


def test_subscriptions_that_change_while_they_are_written_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "STEP", 3)
    one = Session("client", b"uid", 1)
    for number in range(8):
        one.subscribe(b"a/%d" % number, SubscriptionOptions(1))
    steps = writing_filters(one)
    next(steps)
    one.unsubscribe(b"a/7")
    assert [*steps] == [None, None]
    assert len(msgpack.unpackb(filters_of(one))[1]) == 7


# -- looked at


@settings(max_examples=200)
@given(st.data())
def test_exactly_who_has_something_in_flight_is_looked_at(data: st.DataObject) -> None:
    one = session(window=3)
    happening = st.sampled_from(
        ["send", "send_one", "puback", "pubrec", "refusal", "pubcomp", "connect", "resend", "abandon"]
    )
    for offset, what in enumerate(data.draw(st.lists(happening, max_size=40))):
        qos, before, sent = 1 + offset % 2, one.in_flight, one.sent
        of_qos = {kind: [i for i, entry in one.unacknowledged.items() if entry[2] == kind] for kind in (1, 2)}
        one.unsettled.sent_to.clear()
        if what == "send":
            one.send(1, range(offset, offset + 2), qos)
        elif what == "send_one":
            one.send_one(1, offset, qos)
        elif what == "puback":
            one.on_pubacks(of_qos[1][:1])
        elif what in ("pubrec", "refusal"):
            one.on_pubrecs(of_qos[2][:1], refused=what == "refusal")
        elif what == "pubcomp":
            one.on_pubcomps(list(one.released)[:1])
        elif what == "connect":
            one.connected(V5)
        elif what == "resend":
            one.resend(1)
        else:
            one.abandon([*one.pending, *one.unacknowledged][:1])
        assert list(one.unsettled.in_flight) == ["client"] * bool(one.in_flight)
        if one.sent > sent and not before:
            assert list(one.unsettled.sent_to) == ["client"]
