"""What sessions were handed over with: the same again for the same generation, and bounded."""

from __future__ import annotations

import pytest

from lexicast.actors.mqtt.owning import handed_over
from lexicast.actors.mqtt.owning.handed_over import HandedOverStates


def test_a_home_that_asks_again_is_told_the_same() -> None:
    states = HandedOverStates()
    states.keep("a", 7, (b"filters", b"place"))
    assert states.of("a", 7) == (b"filters", b"place")
    assert states.of("a", 6) is None
    assert states.of("b", 7) is None
    states.keep("a", 9, (b"", b"later"))
    assert states.of("a", 7) is None
    assert states.of("a", 9) == (b"", b"later")


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_over, "STATES_MAX", 3)
    monkeypatch.setattr(handed_over, "STATES_BYTES_MAX", 10)
    states = HandedOverStates()
    for i in range(5):
        states.keep(str(i), 1, (b"", b"x"))
    assert [states.of(str(i), 1) is not None for i in range(5)] == [False, False, True, True, True]
    states.keep("large", 1, (b"12345", b"12345"))
    assert states.of("4", 1) is None
    assert states.of("large", 1) is not None
