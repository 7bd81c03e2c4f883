"""What of this cluster's publications goes to the other broker, and in which form."""

from __future__ import annotations

import pytest

from lexicast.actors.bridge.counters import BridgeCounters
from lexicast.actors.bridge.dealt_records import DealtRecords
from lexicast.actors.bridge.handshake import RemoteTerms
from lexicast.actors.bridge.outbound_forms import OutboundForms
from lexicast.actors.client.messages import Message
from lexicast.actors.mqtt.codec import publish_size
from lexicast.actors.mqtt.codec.packets import V5, V311
from lexicast.cluster.bridges.definitions import BridgedTopic
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.points_in_time import utc
from lexicast.cluster.positions import Position

TOPIC = "a/" + "b" * 20


def forms_to(version: int, packet_bytes_max: int, counters: BridgeCounters) -> OutboundForms:
    made = OutboundForms([BridgedTopic()], "here", SystemClock(), counters)
    terms = RemoteTerms(False, 10, packet_bytes_max, 2, True, 60, "", False, False, False, False, ())
    made.connected(terms, version, "there")
    return made


def messages(*payloads: bytes, qos: int = 1, retain: bool = False) -> DealtRecords:
    records = DealtRecords(0)
    records.add_messages(
        [
            Message(TOPIC, payload, Position(3, 1, offset), utc(1), qos, retain, None, None)
            for offset, payload in enumerate(payloads)
        ]
    )
    return records


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("payload", [b"", b"1", b"12345"])
def test_what_is_too_large_for_the_other_broker_does_not_go(version: int, payload: bytes) -> None:
    (known,), _ = forms_to(version, 0, BridgeCounters()).outbound(messages(payload), 0, 1)
    size = publish_size(version, len(TOPIC), len(payload), 1, known.form.properties)
    for most, goes in ((size, True), (size - 1, False)):
        counters = BridgeCounters()
        found, passed = forms_to(version, most, counters).outbound(messages(payload), 0, 1)
        assert [each.payload for each in found] == ([payload] if goes else [])
        assert passed == ([] if goes else [(0, 3, 0)])
        assert counters.refused_out == (not goes)


def test_how_a_topics_messages_go_is_worked_out_once() -> None:
    forms = forms_to(V5, 0, BridgeCounters())
    found = [
        outbound.form
        for records in (messages(b"1", b"2"), messages(b"3"), messages(b"4", qos=0), messages(b"5", retain=True))
        for outbound in forms.outbound(records, 0, len(records))[0]
    ]
    assert [(form.topic, form.qos, form.retain) for form in found] == [
        (TOPIC.encode(), 1, False),
        (TOPIC.encode(), 1, False),
        (TOPIC.encode(), 1, False),
        (TOPIC.encode(), 0, False),
        (TOPIC.encode(), 1, True),
    ]
    assert len(set(map(id, found))) == 3
