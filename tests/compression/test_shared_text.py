"""What fewer than `publishers_min` have sent is in no dictionary and no model: searched for in their bytes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import CODECS, DEFLATE_PRESET, FIELDS, ZSTD, ZSTD_DENSE
from lexicast.compression.dictionary import PUBLISHERS_MAX, Dictionary, unpack_dictionary
from lexicast.compression.dictionary_content import COVERING, FIELD_SOURCES, RECENT, SUBSTRINGS, TRAINED
from lexicast.compression.fields.codec import split_fields_content
from lexicast.compression.fields.description import model_texts
from lexicast.compression.fields.serialised import load_model
from lexicast.compression.maintenance import Candidate, Due, split_by_thirds
from lexicast.compression.predict import Predict
from lexicast.compression.shared_text import TEXT_BYTES_MIN, Sent, SharedText, told_by_few
from lexicast.compression.training import fulfil, train

LENGTH = 6
WORDS = ["idle", "running", "failed", "celsius", "temperature", "firmware", "4.17.2"]


def reading(device: int, number: int) -> bytes:
    draw = random.Random(device * 1_000 + number)
    owner = f"owner-{device:03}-{random.Random(device).randrange(10**8):08}"
    return json.dumps(
        {
            "device": f"unit{device:05}",
            "owner": owner,
            "state": draw.choice(["running", "idle", "failed"]),
            "temperature": round(draw.gauss(20, 5), 2),
            "unit": "celsius",
        }
    ).encode()


def fleet(devices: int, count: int = 300) -> list[Sent]:
    return [Sent(f"d-{number % devices}", reading(number % devices, number)) for number in range(count)]


def made_of(sent: list[Sent], codec: str, source: str, publishers_min: int = 3) -> Dictionary:
    shared = SharedText(sent, publishers_min)
    return train([each.message for each in sent], 8_192, codec, source, family=b"f/+", shared=shared)


class TestNothingIsTold:
    @pytest.mark.parametrize("source", [RECENT, COVERING, SUBSTRINGS, TRAINED])
    @pytest.mark.parametrize("codec", [ZSTD, ZSTD_DENSE, DEFLATE_PRESET])
    @pytest.mark.parametrize("devices", [3, 30])
    def test_dictionaries_of_bytes(self, codec: str, source: str, devices: int) -> None:
        sent = fleet(devices)
        made = made_of(sent, codec, source)
        assert b'", "state": "' in made.content
        assert told_by_few(made.content, sent, 3, LENGTH) is None
        assert made.publishers == 3

    @pytest.mark.parametrize("source", FIELD_SOURCES)
    @pytest.mark.parametrize("devices", [3, 30])
    def test_field_models(self, source: str, devices: int) -> None:
        sent = fleet(devices)
        made = made_of(sent, FIELDS, source)
        _, preset, dumped = split_fields_content(made.content)
        assert told_by_few(preset, sent, 3, LENGTH) is None
        assert told_by_few(dumped, sent, 3, LENGTH) is None
        texts = list(model_texts(load_model(dumped)))
        assert b'", "state": "' in texts
        shared = SharedText(sent, 3)
        assert all(map(shared.admits, texts))

    def test_it_is_told_without(self) -> None:
        sent = fleet(30)
        for codec, source in ((ZSTD_DENSE, RECENT), (FIELDS, FIELD_SOURCES[0])):
            made = train([each.message for each in sent], 8_192, codec, source, family=b"f/+")
            content = made.content if codec != FIELDS else split_fields_content(made.content)[2]
            assert told_by_few(content, sent, 3, LENGTH) is not None
            assert made.publishers == 0

    def test_what_one_poisoner_repeats_stays_out(self) -> None:
        poison = b"visit http://evil.example/login now "
        sent = [*fleet(10), *[Sent("poisoner", poison * 3) for _ in range(100)]]
        for codec, source in ((ZSTD_DENSE, RECENT), (DEFLATE_PRESET, SUBSTRINGS)):
            content = made_of(sent, codec, source).content
            assert b"evil" not in content
            assert b"login" not in content

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from("abcd"), st.lists(st.sampled_from(WORDS), min_size=1, max_size=8)),
            min_size=6,
            max_size=40,
        ),
        st.integers(2, 4),
    )
    def test_whatever_is_sent(self, messages: list[tuple[str, list[str]]], publishers_min: int) -> None:
        sent = [Sent(publisher, f"{publisher * 9} {' '.join(words)}".encode()) for publisher, words in messages]
        shared = SharedText(sent, publishers_min)
        content = shared.packed(4_096)
        for length in (TEXT_BYTES_MIN, LENGTH, 12):
            assert told_by_few(content, sent, publishers_min, length) is None
        try:
            made = made_of(sent, FIELDS, FIELD_SOURCES[0], publishers_min)
        except DictionaryError:
            return
        assert all(map(shared.admits, model_texts(load_model(split_fields_content(made.content)[2]))))

    def test_letters_by_position_do_not_spell_what_one_has_sent(self) -> None:
        """One sends most of the values of a field, and all of them begin alike."""
        draw = random.Random(1)
        talks = [Sent("owner", b'{"n":%d,"key":"SECRET%d"}' % (at, draw.randrange(10**9))) for at in range(100)]
        others = [
            Sent(f"d-{at % 5}", b'{"n":%d,"key":"%s"}' % (at, draw.randbytes(6).hex().encode())) for at in range(20)
        ]

        def tables(sent: list[Sent], publishers_min: int) -> list[int]:
            shared = SharedText(sent, publishers_min) if publishers_min else None
            made = train([each.message for each in sent], 8_192, FIELDS, family=b"f/+", shared=shared)
            model = load_model(split_fields_content(made.content).model)
            return [len(field.run.positions) for field in model.fields if field.run is not None]

        assert max(tables(talks + others, 0)) >= len("SECRET")
        assert max(tables(talks + others, 3)) == 0

    def test_where_all_bytes_occur_there_is_no_dictionary_of_bytes(self) -> None:
        sent = [Sent(f"d-{number}", bytes(range(256)) * 2) for number in range(5)]
        assert SharedText(sent, 3).packed(1_000) == b""
        with pytest.raises(DictionaryError, match="nothing in common"):
            made_of(sent, ZSTD, RECENT)


class TestTrials:
    def test_a_family_of_many_publishers_gets_one_that_says_so(self) -> None:
        sent = fleet(30)
        predict = Predict()
        for number, each in enumerate(sent):
            predict.observe(each.message, number, b"f/1")
        due = predict.due()
        assert due is not None
        made = fulfil(due._replace(shared=SharedText(sent, 3)), family=b"f/+", now_us=1)
        assert made is not None
        assert made.publishers == 3
        assert b"owner-0" not in made.content
        held = made.build()
        for each in sent:
            assert held.decompress(held.compress(each.message)) == each.message

    def test_nothing_pays_where_nothing_may_be_told(self) -> None:
        sent = [Sent(f"d-{n % 3}", random.Random(n % 3).randbytes(20).hex().encode() * 3) for n in range(60)]
        training, held_out = split_by_thirds(tuple([each.message for each in sent]))
        candidates = (Candidate(ZSTD_DENSE, 2_000, RECENT), Candidate(FIELDS, 8_192, FIELD_SOURCES[0]))
        due = Due(training, held_out, candidates, 1e9, 0.0, None, 1, shared=SharedText(sent, 3))
        made = fulfil(due, family=b"f/+", now_us=1)
        assert made is None or told_by_few(made.content, sent, 3, LENGTH) is None


class TestPacked:
    @given(st.sampled_from(sorted(CODECS)), st.integers(0, PUBLISHERS_MAX), st.integers(0, (1 << 20) - 1))
    def test_publishers_travel_along(self, codec: str, publishers: int, samples: int) -> None:
        one = Dictionary(b"f/+", codec, b"content", 5, samples=samples, publishers=publishers)
        assert unpack_dictionary(one.pack()) == one

    def test_many_samples_are_no_publishers(self) -> None:
        one = Dictionary(b"f/+", ZSTD, b"content", 5, samples=(1 << 31) - 1)
        assert unpack_dictionary(one.pack()).publishers == 0
