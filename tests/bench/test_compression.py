"""FemtoZip's reference, the peers and the offline drivers on small corpora."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.compression import offline_runs
from lexicast.bench.compression.baselines import FixedRate
from lexicast.bench.compression.femtozip import FemtoZip, Match, tokens, usage
from lexicast.bench.compression.link_runs import MeasuredCorpus, link_run
from lexicast.bench.compression.offline_runs import (
    BINDING_BYTES,
    RememberingTrainer,
    SharedTrainer,
    simulate,
    train_now,
)
from lexicast.bench.compression.without_dictionary import (
    deflate_reduction,
    stream_reduction,
    vcdiff_bytes,
    vcdiff_reduction,
    xdelta3_program,
)
from lexicast.bench.data.corpora import Corpus, of_folder
from lexicast.bench.tapd import driver as tapd
from lexicast.bench.tapd.overlay import DISTRIBUTIONS, overlay, senders
from lexicast.cluster.errors import DictionaryError, UsageError
from lexicast.compression.accounting import reduction_percent
from lexicast.compression.predict import Predict


def readings(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps({"device": f"d-{draw.randrange(50)}", "temperature": round(draw.gauss(20, 5), 2)}).encode()
        for _ in range(count)
    ]


class TestFemtoZip:
    def test_the_nearest_longest_match(self) -> None:
        assert list(tokens(b"abcdef-abcd", b"abcdefX")) == [Match(6, 11), ord("X")]
        assert list(tokens(b"", b"abababab")) == [*b"ab", Match(6, 2)]

    @given(st.binary(max_size=80), st.lists(st.binary(max_size=60), max_size=5), st.binary(max_size=120))
    def test_messages_come_back_equal(self, dictionary: bytes, samples: list[bytes], message: bytes) -> None:
        codec = FemtoZip(dictionary, samples)
        assert codec.decompress(codec.compress(message)) == message

    @given(st.binary(max_size=60))
    def test_garbage_is_an_error_or_a_bounded_payload(self, data: bytes) -> None:
        codec = FemtoZip(b"dictionary", [b"sample"])
        try:
            assert len(codec.decompress(data, bytes_max=1_000)) <= 1_000
        except DictionaryError:
            return

    def test_static_tables_pay_on_short_messages(self) -> None:
        train, fresh = readings(1, 200), readings(2, 100)
        dictionary = b"".join(train[-20:])
        codec = FemtoZip(dictionary, train)
        assert sum(len(codec.compress(message)) for message in fresh) < 0.25 * sum(map(len, fresh))

    def test_usage_by_hand(self) -> None:
        """Of 8 bytes 4 are used; of 8 matched bytes 4 lie in the message itself."""
        assert usage(b"abcdWXYZ", [b"abcd!1234-1234"]) == (50.0, 50.0)


class TestPeers:
    def test_streams_see_what_came_before(self) -> None:
        messages = readings(1, 200)
        assert deflate_reduction(messages) < vcdiff_reduction(messages) < stream_reduction(messages)

    def test_a_part_stands_for_all(self) -> None:
        messages = readings(1, 600)
        assert abs(vcdiff_reduction(messages, measured=100) - vcdiff_reduction(messages)) < 3

    @pytest.mark.skipif(xdelta3_program() is None, reason="xdelta3 is not installed")
    def test_xdelta3_is_about_what_the_model_of_it_is(self) -> None:
        messages = readings(1, 100)
        made = vcdiff_reduction(messages, xdelta3=xdelta3_program())
        assert abs(made - vcdiff_reduction(messages)) < 10

    def test_vcdiff_of_equal_and_of_unrelated_messages(self) -> None:
        assert vcdiff_bytes(b"x" * 5 + b"0123456789" * 3, b"x" * 5 + b"0123456789" * 3) < 15
        assert vcdiff_bytes(b"", b"0123456789") >= 10


class TestSimulation:
    def test_the_accounting_is_equation_5_2_1(self) -> None:
        messages = readings(1, 400)
        run = simulate(messages, FixedRate(5, 100, 150))
        assert [seen for seen, _ in run.dictionaries] == [100, 250, 400]
        packed = [made.pack() for _, made in run.dictionaries]
        assert run.dictionary_bytes == sum(map(len, packed)) + BINDING_BYTES * len(packed)
        codec_of = dict(run.dictionaries)
        sent, codec = 0, None
        for seen, message in enumerate(messages):
            codec = codec_of[seen].build() if seen in codec_of else codec
            data = codec.encode(message)[1] if codec else None
            sent += 1 + (len(data) if data is not None else min(len(message), _deflated(message)))
        assert run.sent_bytes == sent
        raw = sum(map(len, messages))
        assert run.reduction(10, 1) == reduction_percent(2 * raw, 2 * sent + 11 * run.dictionary_bytes)

    def test_a_shared_trainer_makes_the_same_dictionaries(self) -> None:
        messages, trainer = readings(1, 300), SharedTrainer()
        for _ in range(2):
            run = simulate(messages, FixedRate(5, 100, 150), trainer=trainer)
            alone = simulate(messages, FixedRate(5, 100, 150), trainer=train_now)
            assert [made.id for _, made in run.dictionaries] == [made.id for _, made in alone.dictionaries]

    def test_what_was_trained_before_is_charged_again_not_trained_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        messages, trainer = readings(1, 300), RememberingTrainer()
        first = simulate(messages, Predict(), trainer=trainer)
        assert first.dictionaries
        monkeypatch.setattr(offline_runs, "fulfil", None)
        again = simulate(messages, Predict(), trainer=trainer)
        assert again.dictionaries == first.dictionaries
        assert again.sampling_cpu_s > first.sampling_cpu_s / 2

    def test_a_stride_estimates(self) -> None:
        messages = readings(1, 2_000)
        whole, part = simulate(messages, Predict()), simulate(messages, Predict(), stride=7)
        assert whole.messages == part.messages
        assert abs(whole.reduction() - part.reduction()) < 2


class TestLinks:
    def test_no_number_of_publishers_is_worse_than_deflate(self) -> None:
        messages = readings(1, 1_500)
        corpus = MeasuredCorpus(messages, simulate(messages, Predict()).dictionaries)
        for publishers in (1, 10, 100, 1_000, 3_000):
            assert link_run(corpus, publishers).reduction() >= deflate_reduction(messages), publishers

    def test_a_topic_stream_keeps_up_with_a_stream_of_each_subscriber_from_the_first_message_on(self) -> None:
        for count in (20, 200, 1_500):
            messages = readings(1, count)
            corpus = MeasuredCorpus(messages, simulate(messages, Predict()).dictionaries)
            streamed = link_run(corpus, 1, streams=True)
            assert streamed.subscriber_bytes <= link_run(corpus, 1).subscriber_bytes
            # a byte a message is the price of saying that it is a frame
            assert streamed.subscriber_reduction() > stream_reduction(messages) - 100 * count / streamed.raw_bytes - 1

    def test_short_streams_have_no_dictionary_and_pay_nothing(self) -> None:
        messages = readings(1, 300)
        corpus = MeasuredCorpus(messages, simulate(messages, Predict()).dictionaries)
        run = link_run(corpus, 300)
        assert (run.totals.links, run.totals.with_dictionary, run.totals.paid_bytes) == (300, 0, 0)
        # each sends one message: its link has no past
        assert run.publisher_bytes <= sum(corpus.deflated) + len(messages)

    def test_without_dictionaries_the_subscriber_gets_deflate(self) -> None:
        messages = readings(1, 50)
        corpus = MeasuredCorpus(messages, [])
        assert link_run(corpus, 1).subscriber_bytes == sum(corpus.deflated)


def _deflated(message: bytes) -> int:
    from lexicast.compression.codecs import Deflate

    return len(Deflate().compress(message))


class TestCorpora:
    def test_a_folder_of_lines(self, tmp_path: Path) -> None:
        (tmp_path / "one.jsonl.gz").write_bytes(gzip.compress(b"a\nb\n\nc\n"))
        (tmp_path / "two.log").write_bytes(b"x\r\ny")
        (tmp_path / "README.md").write_text("no messages")
        assert of_folder(tmp_path, 2) == [Corpus("one", [b"a", b"b"]), Corpus("two", [b"x", b"y"])]

    def test_the_first_messages_by_bytes_and_by_number(self) -> None:
        corpus = Corpus("one", [b"abc", b"d", b"efgh", b"i"])
        assert [len(corpus.within(most, 1).messages) for most in (0, 3, 4, 7, 8, 9, 100)] == [1, 1, 2, 2, 3, 4, 4]
        assert len(corpus.within(0, 3).messages) == 3

    def test_an_empty_folder_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no file there"):
            of_folder(tmp_path, None)


class TestTapd:
    def test_every_distribution_sends_all_messages(self) -> None:
        for distribution in DISTRIBUTIONS:
            order = senders(distribution, 20, 1_000, 1)
            assert len(order) == 1_000
            assert set(order.tolist()) <= set(range(20))
        with pytest.raises(ValueError, match="unknown distribution"):
            senders("Cauchy", 1, 1, 1)

    def test_paths_reach_every_subscriber(self) -> None:
        graph = overlay(30, 10, 5, 2, 1)
        for broker, edges in enumerate(graph.message_edges):
            reached = {broker} | {end for _, end in edges}
            assert set(graph.subscriber_home) <= reached
        assert {end for _, end in graph.dictionary_edges} | {begin for begin, _ in graph.dictionary_edges} == set(
            range(10)
        )

    def test_no_link_pays_for_nothing_unless_it_stops(self) -> None:
        one = tapd.profile(Corpus("readings", readings(1, 3_000)))
        assert one.newest < one.outdated <= one.deflate or one.newest == one.outdated
        graph = overlay(50, 10, 5, 2, 1)
        for distribution in DISTRIBUTIONS:
            outcome = tapd.simulate_overlay(one, distribution, graph, 20_000)
            assert outcome.above == 0
            assert outcome.overall["S"] > outcome.overall["P"]
            assert 0 <= outcome.unamortised <= 50
