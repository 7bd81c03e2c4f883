"""The driver of field models, and its attempts at wrong bytes: what is wrong is counted."""

from __future__ import annotations

import pytest

from lexicast.bench.compression.fields import main
from lexicast.bench.compression.hostile import Attempts
from lexicast.bench.data.corpora import Corpus
from lexicast.compression.deflate import Codec
from lexicast.compression.fields.codec import FieldsCodec

READINGS = Corpus("readings", [b'{"n":%d,"t":%d.%d}' % (at, 20 + at % 7, at % 10) for at in range(400)])


def test_attempts_of_all_kinds_find_nothing_wrong() -> None:
    attempts = Attempts([READINGS], seed=3)
    attempts.run(2_000)
    assert (attempts.wrong, attempts.problems) == (0, [])
    assert {kind for kind, count in attempts.counted.items() if count} == {
        "payload",
        "payload in a stream",
        "frame",
        "model, refused",
        "model, taken",
        "payload by a hostile model",
    }


def test_attempts_count_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts([READINGS], seed=3)

    def cut(self: Codec, data: bytes, *, bytes_max: int = 0) -> bytes:
        if len(data) > 40:
            raise IndexError("of no known kind")
        return b""

    monkeypatch.setattr(FieldsCodec, "decompress", cut)
    attempts.run(500)
    assert attempts.wrong > 100
    assert any(["something else came back" in problem for problem in attempts.problems])
    assert any(["IndexError" in problem for problem in attempts.problems])


def test_the_driver_measures_corpora(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    named = Corpus("weather", READINGS.messages)
    monkeypatch.setattr("lexicast.bench.compression.fields.of_packages", lambda count: [named.first(count)])
    assert main(["--quick", "--rounds", "1", "--messages", "100", "--attempts", "300"]) == 0
    told = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines() if " = " in line)
    assert told["wrong_bytes"] == "0.0"
    assert float(told["fields_weather"]) > 75
    assert float(told["fields_compress_us"]) > 0
