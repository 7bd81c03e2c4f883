"""FirstSamples, training and the accounting of thesis equation 5.2.1."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.compression.network_bytes import compressed_bytes, uncompressed_bytes
from lexicast.bench.compression.offline_runs import OfflineRun
from lexicast.cluster.errors import DictionaryError
from lexicast.compression import accounting
from lexicast.compression.accounting import REST, Traffic, TrafficCounters
from lexicast.compression.codecs import CODECS, DEFLATE_PRESET, FIELDS, ZSTD, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import SAMPLES_BYTES_MAX, Candidate, Due
from lexicast.compression.training import fulfil, mean_bytes, train
from lexicast.compression.wire import Recoder

from ..support.first_samples import FirstSamples, sizes_for


def readings(seed: int, count: int, name: str = "temperature") -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps(
            {"device": f"d-{draw.randrange(500)}", name: round(draw.gauss(20, 5), 2), "unit": name[::-1]}
        ).encode()
        for _ in range(count)
    ]


def run(policy: FirstSamples, messages: list[bytes]) -> list[tuple[int, Dictionary | None]]:
    """What the sampling broker does: (messages seen, answer) at each look."""
    looks = []
    for seen, message in enumerate(messages, 1):
        policy.observe(message, seen)
        due = policy.due()
        if due is not None:
            answer = fulfil(due, family=b"f/+", now_us=seen)
            looks.append((seen, answer))
            policy.adopt(answer)
            assert policy.due() is None
    return looks


def test_the_first_dictionary_comes_after_the_first_samples_and_pays() -> None:
    looks = run(FirstSamples(50), readings(1, 100))
    assert [seen for seen, _ in looks] == [50]
    first = looks[0][1]
    assert first is not None
    assert (first.family, first.created_us, first.samples) == (b"f/+", 50, 50)
    fresh = readings(2, 200)
    assert mean_bytes(first.build(), fresh) < 0.6 * mean_bytes(Deflate(), fresh)


def test_looks_come_at_growing_intervals_up_to_the_longest() -> None:
    policy = FirstSamples(10, growth=3, interval_max=200)
    assert [seen for seen, _ in run(policy, readings(1, 800))] == [10, 30, 90, 270, 470, 670]


def test_a_stable_family_keeps_its_dictionary() -> None:
    looks = run(FirstSamples(100, growth=2, margin_percent=3), readings(1, 1_000))
    assert len(looks) == 4
    assert [answer is not None for _, answer in looks] == [True, False, False, False]


def test_a_changed_language_gets_a_new_dictionary() -> None:
    policy = FirstSamples(50, growth=2)
    looks = run(policy, readings(1, 50) + readings(2, 600, "windspeed-and-direction"))
    answers = [answer for _, answer in looks if answer]
    assert len(answers) >= 2
    assert b"windspeed" not in answers[0].content
    assert policy.current == answers[-1]
    assert b"windspeed-and-direction" in answers[-1].content


def test_noise_gets_no_dictionary() -> None:
    draw = random.Random(1)
    policy = FirstSamples(30)
    looks = run(policy, [draw.randbytes(60) for _ in range(500)])
    assert looks
    assert all(answer is None for _, answer in looks)
    assert policy.current is None


def test_many_publishers_make_a_dictionary_dearer() -> None:
    alone, crowd = FirstSamples(), FirstSamples()
    crowd.audience(10_000, 1)
    for message in readings(1, 100):
        alone.observe(message, 0)
        crowd.observe(message, 0)
    few, many = alone.due(), crowd.due()
    assert few is not None
    assert many is not None
    assert (few.horizon, many.horizon) == (500, 1)
    assert fulfil(few, family=b"f", now_us=0) is not None
    assert fulfil(many, family=b"f", now_us=0) is None
    with pytest.raises(ValueError, match="at least one"):
        crowd.audience(0, 1)


def test_memory_is_bounded_and_huge_messages_are_not_kept() -> None:
    policy = FirstSamples(50, samples_max=300)
    for n in range(400):
        policy.observe(bytes([n % 256]) * 60_000, n)
        policy.observe(b"x" * 1_000_000, n)
        policy.observe(b"", n)
    kept = policy._samples
    assert kept.kept_bytes == sum(map(len, kept.last(1_000))) <= SAMPLES_BYTES_MAX
    due = policy.due()
    assert due is not None
    assert {len(message) for message in (*due.training, *due.held_out)} == {60_000}


def test_a_family_of_empty_messages_is_left_alone() -> None:
    assert run(FirstSamples(10), [b""] * 100) == []


@pytest.mark.parametrize(
    "arguments",
    [{"samples": 3}, {"samples": 400}, {"growth": 1.0}, {"horizon_min": 0}, {"margin_percent": -1}, {"life_us": 0}],
)
def test_arguments_out_of_range(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"samples|growth"):
        FirstSamples(**arguments)


def test_the_dictionary_of_a_predecessor_is_the_bar() -> None:
    policy = FirstSamples(50)
    good = train(readings(1, 300), 8_192, DEFLATE_PRESET, family=b"f/+")
    policy.adopt(good)
    assert policy.current == good
    (_, answer), *_ = run(policy, readings(2, 60))
    assert answer is None


@given(
    samples=st.lists(st.binary(max_size=40), max_size=40),
    codec=st.sampled_from(list(CODECS)),
    size=st.integers(1, 5_000),
)
def test_training_on_anything_gives_a_usable_dictionary_or_a_clear_error(
    samples: list[bytes], codec: str, size: int
) -> None:
    if not any(samples):
        with pytest.raises(DictionaryError, match="samples are empty"):
            train(samples, size, codec, family=b"f")
        return
    built = train(samples, size, codec, family=b"f").build()
    for sample in samples:
        assert built.decompress(built.compress(sample)) == sample


@pytest.mark.parametrize("short", range(5, 9))
def test_samples_of_which_the_first_have_next_to_no_byte_are_trained_on(short: int) -> None:
    """ZDICT trains on the first three quarters, and with less than 8 bytes there it crashes."""
    samples = [b"a"] * short + [b"hello world, this is longer " * 4] * 3
    built = train(samples, 256, ZSTD, family=b"f").build()
    for sample in samples:
        assert built.decompress(built.compress(sample)) == sample


def test_raw_content_that_looks_like_a_trained_dictionary_is_usable() -> None:
    sample = bytes.fromhex("37a430ec") + b"hello hello"
    built = train([sample], 1_024, ZSTD, family=b"f").build()
    assert built.decompress(built.compress(sample)) == sample


def test_unknown_codecs_are_refused() -> None:
    with pytest.raises(DictionaryError, match="unknown codec 'lz4'"):
        train([b"abc"], 100, "lz4", family=b"f")


def test_sizes_follow_the_mean_within_their_bounds() -> None:
    assert sizes_for(100)[0] == Candidate(ZSTD, 1024)
    assert sizes_for(500)[0] == Candidate(ZSTD, 4000)
    assert sizes_for(9_999)[0] == Candidate(ZSTD, 16_384)


def test_messages_of_too_many_fields_for_a_model_get_another_dictionary() -> None:
    """Two dozen texts of 3,900 B that say one number each: a model of what is the same in them has 91 KB."""
    draw = random.Random(1)
    words = [draw.randbytes(6).hex().translate({48 + at: 103 + at for at in range(10)}) for _ in range(3_000)]
    texts = [" ".join([draw.choice(words) for _ in range(300 - at)]) + "!" * at for at in range(24)]
    messages = tuple([f"{texts[at % 24]} = {draw.randrange(1_000)}".encode() for at in range(144)])
    with pytest.raises(DictionaryError, match="too many fields"):
        train(messages, 64 * 1024, FIELDS, family=b"f")
    of_fields = Candidate(FIELDS, 64 * 1024, "fields")
    due = Due(
        messages[:120], messages[120:], (of_fields, Candidate(DEFLATE_PRESET, 32 * 1024, None)), 5_000, 1.0, None, 1
    )
    made = fulfil(due, family=b"f", now_us=0)
    assert made is not None
    assert made.codec == DEFLATE_PRESET
    assert fulfil(due._replace(candidates=(of_fields,)), family=b"f", now_us=0) is None


def test_nothing_to_train_on_gives_no_dictionary() -> None:
    due = Due((), (b"abc",), sizes_for(10), 500, 1.0, None, 1)
    assert fulfil(due, family=b"f", now_us=0) is None
    assert fulfil(due._replace(training=(b"", b"")), family=b"f", now_us=0) is None


def test_equation_5_2_1() -> None:
    """1,000 B of messages in 300 B, a dictionary of 100 B, 2 publishers, 4 subscribers."""
    uncompressed = uncompressed_bytes(1_000, 4)
    compressed = compressed_bytes(300, 100, 2, 4)
    assert (uncompressed, compressed) == (5_000, 2_100)
    assert accounting.reduction_percent(uncompressed, compressed) == pytest.approx(58.0)
    run = OfflineRun(10, 1_000, 300, dictionary_bytes=100)
    assert run.reduction(publishers=2, subscribers=4) == pytest.approx(58.0)
    assert Traffic(10, 1_000, 300, 100).reduction_percent() == pytest.approx(60.0)
    assert Traffic().reduction_percent() == 0.0


def test_tag_bytes_make_incompressible_traffic_negative() -> None:
    recoder, draw, counters = Recoder(), random.Random(1), TrafficCounters()
    for _ in range(100):
        message = draw.randbytes(20)
        counters.add(b"f", len(message), 1 + len(recoder.encode(message).data))
    assert counters.total() == Traffic(100, 2_000, 2_100, 0)
    assert counters.total().reduction_percent() == pytest.approx(-5.0)


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", None]), st.integers(0, 99), st.integers(0, 99))),
    st.integers(0, 30),
    st.integers(1, 4),
)
def test_counters_merge_to_what_one_counter_counts(
    counts: list[tuple[bytes | None, int, int]], split: int, families_max: int
) -> None:
    whole, first, second = (TrafficCounters(families_max) for _ in range(3))
    for at, (family, raw, sent) in enumerate(counts):
        part = first if at < split else second
        for counter in (whole, part):
            counter.add(family, raw, sent)
            counter.add_dictionary(family, raw)
    first.merge(second.snapshot())
    assert first.total() == whole.total()
    assert len(first.snapshot().keys() - {REST}) <= families_max
    if families_max == 4:
        assert first.snapshot() == whole.snapshot()
