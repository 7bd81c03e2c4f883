"""The outgoing half of a session against a naive model: a list of everything ever sent, searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lexicast.actors.mqtt.codec.packets import PUBREL, V5, AckRun
from lexicast.actors.mqtt.session import Resend, Session
from lexicast.actors.mqtt.session_state import filters_of, place_of, restore

INFLIGHT_MAX = 8
GROUPS = 3


@dataclass
class Sent:
    """One publication with a packet id."""

    packet_id: int
    group: int
    offset: int
    qos: int
    stage: str = "sent"  # -> ("waiting" -> "sent") -> "released" -> "done"
    released_at: int = 0


class SessionMachine(RuleBasedStateMachine):
    """Random events to a session and its model; every answer is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session("c", b"u", 1, inflight_max=INFLIGHT_MAX)
        self.log: list[Sent] = []
        self.heads = [0] * GROUPS
        self.window = 0
        self.clock = 0

    def stage(self, *stages: str) -> list[Sent]:
        return [sent for sent in self.log if sent.stage in stages]

    def room(self) -> int:
        return 0 if self.stage("waiting") else max(0, self.window - len(self.stage("sent", "released")))

    @initialize(next_id=st.sampled_from([1, 65_530, 65_535]), maximum=st.integers(1, 12))
    def begin(self, next_id: int, maximum: int) -> None:
        self.session.next_id = next_id
        self.connect(maximum)

    @rule(maximum=st.integers(1, 12))
    def connect(self, maximum: int) -> None:
        replies = self.session.connected(V5, maximum)
        self.window = min(maximum, INFLIGHT_MAX)
        for sent in self.stage("sent"):
            sent.stage = "waiting"
        released = sorted(self.stage("released"), key=lambda sent: sent.released_at)
        assert replies == ([AckRun(PUBREL, [sent.packet_id for sent in released])] if released else [])

    @rule()
    def move_to_another_broker(self) -> None:
        filters, place = filters_of(self.session), place_of(self.session, handed_over=True)
        self.session = Session("c", b"u", self.session.generation + 1, inflight_max=INFLIGHT_MAX)
        restore(self.session, filters, place)
        self.connect(INFLIGHT_MAX)

    @rule(group=st.integers(0, GROUPS - 1), qos=st.integers(1, 2), count=st.integers(1, 6))
    def send(self, group: int, qos: int, count: int) -> None:
        offsets = list(range(self.heads[group], self.heads[group] + count))
        room = self.room()
        ids = self.session.send(group, offsets, qos)
        assert len(ids) == min(count, room)
        in_use = {sent.packet_id for sent in self.stage("sent", "waiting", "released")}
        assert in_use.isdisjoint(ids)
        assert len(set(ids)) == len(ids)
        assert all(1 <= packet_id <= 65_535 for packet_id in ids)
        self.log += [Sent(packet_id, group, offsets[i], qos) for i, packet_id in enumerate(ids)]
        self.heads[group] += len(ids)

    @precondition(lambda self: self.stage("sent", "waiting", "released"))
    @rule(data=st.data())
    def come_round(self, data: st.DataObject) -> None:
        """As after tens of thousands of publications: the next packet id is in use."""
        self.session.next_id = data.draw(
            st.sampled_from(self.stage("released") or self.stage("sent", "waiting"))
        ).packet_id

    @rule()
    def resend(self) -> None:
        room = max(0, self.window - len(self.stage("sent", "released")))
        expected = self.stage("waiting")[:room]
        assert self.session.resend() == [Resend(s.packet_id, s.group, s.offset, s.qos, False) for s in expected]
        for sent in expected:
            sent.stage = "sent"

    @precondition(lambda self: self.stage("sent", "waiting"))
    @rule(data=st.data(), refused=st.booleans())
    def acknowledge(self, data: st.DataObject, refused: bool) -> None:
        sent = data.draw(st.sampled_from(self.stage("sent", "waiting")))
        if sent.qos == 1:
            assert self.session.on_pubacks([sent.packet_id]) == 1
            sent.stage = "done"
            return
        replies = self.session.on_pubrecs([sent.packet_id], refused)
        self.clock += 1
        sent.stage, sent.released_at = ("done", 0) if refused else ("released", self.clock)
        assert replies == ([] if refused else [AckRun(PUBREL, [sent.packet_id])])

    @precondition(lambda self: self.stage("released"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.stage("released")))
        assert self.session.on_pubcomps([sent.packet_id]) == 1
        sent.stage = "done"

    @rule(packet_id=st.integers(100, 200))
    def acknowledge_what_was_never_sent(self, packet_id: int) -> None:
        in_use = {sent.packet_id for sent in self.stage("sent", "waiting", "released")}
        if packet_id not in in_use:
            assert self.session.on_pubacks([packet_id]) == self.session.on_pubcomps([packet_id]) == 0

    @invariant()
    def what_is_held_is_right(self) -> None:
        for group in range(GROUPS):
            open_offsets = [s.offset for s in self.stage("sent", "waiting", "released") if s.group == group]
            assert self.session.held().get(group) == min(open_offsets, default=None)

    @invariant()
    def window_is_kept(self) -> None:
        assert self.session.room == self.room()
        assert self.session.in_flight == len(self.stage("sent", "waiting", "released")) <= INFLIGHT_MAX


SessionMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=50)
TestSession: Any = SessionMachine.TestCase
