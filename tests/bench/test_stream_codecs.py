"""The driver that compares codecs of topic streams."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.bench.compression.stream_codecs import fields_kind, level_kind, main, product_kinds, streamed
from lexicast.compression.streams.frames import next_frame
from lexicast.compression.streams.topic_stream import TopicStream

READINGS = [b'{"n":%d,"t":%d.%d}' % (at, 20 + at % 7, at % 10) for at in range(400)]
FIELDS = fields_kind(READINGS[:50])


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=2, max_size=20), st.integers(1, 3))
def test_streams_of_every_kind_give_back_what_they_were_given(messages: list[bytes], topics: int) -> None:
    for kind in (*product_kinds(), level_kind(3), FIELDS):
        streamed(kind, messages[:1], [*messages[1:], b"x"], topics, 1)


def test_the_stream_of_deflate_is_that_of_a_topic() -> None:
    stream = TopicStream()
    sent = sum([len(stream.encode([message], 0)[0][0]) for message in READINGS])
    brings_key_frame = 2
    assert len(next_frame(0, b"")) == 1
    saved = streamed(product_kinds()[0], [], READINGS, 1, 1).saved
    assert saved == pytest.approx(100 - 100 * (sent - brings_key_frame) / sum(map(len, READINGS)))


def test_messages_are_dealt_to_topics_with_streams_of_their_own() -> None:
    draw = random.Random(1)
    texts = [draw.randbytes(300), draw.randbytes(300)]
    turns = [texts[at % 2] for at in range(40)]
    for kind in (*product_kinds(), level_kind(1)):
        apart = streamed(kind, turns[:2], turns[2:], 2, 1)
        assert apart.saved > 90
        assert streamed(kind, turns[:1], turns[1:], 2, 1).saved < apart.saved


def test_the_driver_measures_every_kind_in_every_part(tmp_path: Path) -> None:
    (tmp_path / "readings.jsonl").write_bytes(b"\n".join(READINGS))
    told = tmp_path / "told.json"
    options = ["--data", str(tmp_path), "--messages", "50", "--rounds", "1", "--levels", "1,6"]
    assert main([*options, "--whole", "--json", str(told)]) == 0
    document = json.loads(told.read_text())
    assert [one[1] for one in document["samples"]["streams"]] == ["cold", "warm", "whole"]
    kinds = [set(one[3]) for one in document["samples"]["streams"]]
    plain = {"DEFLATE", "zstd", "zstd 1", "zstd 6"}
    assert kinds == [plain, plain | {"fields"}, plain]
    assert document["figures"]["zstd_stream_gain_max"] >= document["figures"]["zstd_stream_gain"] >= 0
    assert document["figures"]["zstd_stream_cpu"] > 0
