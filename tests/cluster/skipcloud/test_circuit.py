"""Circuits: whatever the way between does, what comes out is what went in, once and in order, or the circuit breaks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import PeerError
from lexicast.cluster.skipcloud import circuit as circuit_module
from lexicast.cluster.skipcloud.circuit import ALIVE_S, GIVE_UP_S, RESEND_S, SILENT_S, WINDOW, Circuit, Segment

TICK_S = 0.05


class BadWay:
    """Two circuits, and a way between that loses, doubles and reorders."""

    def __init__(self, seed: int, loss: float) -> None:
        self.dice = random.Random(seed)
        self.loss = loss
        self.now_s = 0.0
        self.ends = Circuit(0.0), Circuit(0.0)
        self.got: tuple[list[bytes], list[bytes]] = [], []
        self._under_way: list[tuple[float, int, Segment]] = []

    def turn(self) -> None:
        """A moment goes by."""
        self.now_s += TICK_S
        for side, end in enumerate(self.ends):
            for segment in end.due(self.now_s):
                copies = self.dice.choice([1, 1, 1, 2])
                for _ in range(copies):
                    if self.dice.random() >= self.loss:
                        at_s = self.now_s + self.dice.choice([0.0, 0.0, 0.0, 0.1])
                        self._under_way.append((at_s, 1 - side, segment))
        arrived = [each for each in self._under_way if each[0] <= self.now_s]
        self._under_way = [each for each in self._under_way if each[0] > self.now_s]
        for _, side, segment in arrived:
            message = self.ends[side].received(segment, self.now_s)
            if message is not None:
                self.got[side].append(message)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 120), st.integers(0, 40))
def test_what_comes_out_is_what_went_in(seed: int, loss: float, there: int, back: int) -> None:
    way = BadWay(seed, loss)
    sent = [b"a%d" % number for number in range(there)], [b"b%d" % number for number in range(back)]
    todo = [list(sent[0]), list(sent[1])]
    for _ in range(4_000):
        for side in (0, 1):
            if todo[side] and way.dice.random() < 0.5:
                way.ends[side].send(todo[side].pop(0), way.now_s)
        way.turn()
        assert way.got[1] == sent[0][: len(way.got[1])]
        assert way.got[0] == sent[1][: len(way.got[0])]
        if way.got == (sent[1], sent[0]):
            return
    raise AssertionError(f"{len(way.got[1])} of {there} and {len(way.got[0])} of {back} have come")


def test_no_more_than_a_window_is_under_way_and_an_acknowledgement_moves_it() -> None:
    circuit = Circuit(0.0)
    for number in range(WINDOW + 5):
        circuit.send(b"%d" % number, 0.0)
    assert [segment.number for segment in circuit.due(0.0)] == list(range(1, WINDOW + 1))
    assert circuit.due(RESEND_S / 2) == []
    circuit.received(Segment(0, 3, b""), RESEND_S / 2)
    assert [segment.number for segment in circuit.due(RESEND_S / 2)] == [WINDOW + 1, WINDOW + 2, WINDOW + 3]
    again = circuit.due(2 * RESEND_S)
    assert [segment.number for segment in again] == list(range(4, WINDOW + 4))
    assert again[0].message == b"3"


def test_who_is_not_acknowledged_or_hears_nothing_gives_up() -> None:
    circuit = Circuit(0.0)
    assert not circuit.broken(SILENT_S)
    assert circuit.broken(SILENT_S + 1)
    circuit.received(Segment(0, 0, b""), 30.0)
    assert not circuit.broken(40.0)
    circuit.send(b"x", 40.0)
    assert not circuit.broken(40.0 + GIVE_UP_S)
    circuit.received(Segment(0, 0, b""), 40.0 + GIVE_UP_S)
    assert circuit.broken(41.0 + GIVE_UP_S), "it speaks, and takes nothing"


def test_something_is_said_now_and_then() -> None:
    circuit = Circuit(0.0)
    assert circuit.due(ALIVE_S / 2) == []
    assert circuit.due(ALIVE_S) == [Segment(0, 0, b"")]
    assert circuit.due(ALIVE_S) == []


def test_what_was_never_sent_cannot_be_taken_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = Circuit(0.0)
    with pytest.raises(PeerError):
        circuit.received(Segment(0, 1, b""), 0.0)
    monkeypatch.setattr(circuit_module, "WAITING_BYTES_MAX", 10)
    circuit.send(b"x" * 10, 0.0)
    with pytest.raises(PeerError):
        circuit.send(b"x", 0.0)
