"""The codec of fields: lossless for every byte string, alone and in streams; what is none is refused."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.fields import shapes, structure, training
from lexicast.compression.fields.alphabets import ALPHABETS, alphabet_of, run_number, run_of
from lexicast.compression.fields.building import Building
from lexicast.compression.fields.codec import (
    FIELDS,
    FRAME_BYTES_MAX,
    FieldsCodec,
    join_fields_content,
    split_fields_content,
)
from lexicast.compression.fields.columns import find_columns
from lexicast.compression.fields.description import describe_model
from lexicast.compression.fields.entropy import Unfolding, fold
from lexicast.compression.fields.histograms import NUMBER_MAX, Histogram
from lexicast.compression.fields.model import MESSAGE_BYTES_MAX
from lexicast.compression.fields.number_formats import FORMS, LITTLE, SINGLE_LITTLE, parse_number, render_number
from lexicast.compression.fields.recurrence import Comings
from lexicast.compression.fields.relations import Relations
from lexicast.compression.fields.serialised import LETTERS_MAX, dump_model, load_model
from lexicast.compression.fields.shapes import find_patterns
from lexicast.compression.fields.structure import Effort, MessageStructure
from lexicast.compression.fields.training import LEAN, RICH, FieldsTraining
from lexicast.compression.fields.vocabulary import SPECIALS, Vocabulary
from lexicast.compression.training import train

FAMILY = b"devices/+/telemetry"
SIZE = 64 * 1024


def reading(number: int, rng: random.Random) -> bytes:
    """What a device says: JSON with constants, counters, decimals, times, an optional member and free text."""
    alarm = b',"alarm":"too %s"' % rng.choice([b"hot", b"cold"]) if rng.random() < 0.2 else b""
    return b'{"device":"d%02d","n":%d,"at":"2024-05-%02dT%02d:%02d:%02dZ","t":%.1f,"sum":%d,"on":%s%s}' % (
        rng.randrange(20),
        1000 + number,
        1 + number // 600,
        number // 60 % 24,
        number % 60,
        rng.randrange(60),
        20 + rng.gauss(0, 5),
        2 * (1000 + number) + rng.randrange(3),
        rng.choice([b"true", b"true", b"false"]),
        alarm,
    )


def readings(count: int, seed: int = 1) -> list[bytes]:
    """Consecutive ones."""
    rng = random.Random(seed)
    return [reading(number, rng) for number in range(count)]


def codec_of(samples: Sequence[bytes], source: str = "fields", size: int = SIZE) -> FieldsCodec:
    """The codec that samples give."""
    return FieldsCodec("a test", train(samples, size, FIELDS, source, family=FAMILY).content)


TRAINED = codec_of(readings(300))
BESIDE = codec_of(readings(300), "fields-and", 8 * 1024)


def test_messages_of_the_family_take_a_tenth() -> None:
    messages = readings(500)[300:]
    for codec in (TRAINED, BESIDE):
        packed = [codec.compress(message) for message in messages]
        assert sum(map(len, packed)) < sum(map(len, messages)) / 9
        assert [codec.decompress(data) for data in packed] == messages


def test_a_stream_takes_less() -> None:
    messages = readings(500)[300:]
    sender, receiver = TRAINED.stream(), TRAINED.stream()
    frames = [sender.compress(message, at) for at, message in enumerate(messages)]
    assert sum(map(len, frames)) < 0.8 * sum([len(TRAINED.compress(message)) for message in messages])
    assert [receiver.decompress(frame, at) for at, frame in enumerate(frames)] == messages


def test_a_stream_remembers_by_the_key_of_its_messages() -> None:
    rng = random.Random(3)
    places = {device: b"%.6f" % rng.uniform(0, 90) for device in range(20)}
    messages = []
    for _ in range(600):
        device = rng.randrange(20)
        messages.append(b'{"id":"sensor-%d","lat":%s,"v":%d}' % (device, places[device], rng.randrange(9)))
    codec = codec_of(messages[:300], "fields-lean")
    sender, receiver = codec.stream(), codec.stream()
    frames = [sender.compress(message, at) for at, message in enumerate(messages[300:])]
    assert [receiver.decompress(frame, at) for at, frame in enumerate(frames)] == messages[300:]
    assert sum(map(len, frames)) < 3 * len(frames)


def test_what_a_stream_remembers_by_key_is_not_whole_messages() -> None:
    rng = random.Random(3)
    places = {device: b"%.6f" % rng.uniform(0, 90) for device in range(200)}

    said = [letter * 3_000 for letter in (b"a", b"b", b"c")]

    def told(device: int) -> bytes:
        return b'{"id":"sensor-%d","lat":%s,"log":"%s"}' % (device, places[device], rng.choice(said))

    codec = codec_of([told(rng.randrange(20)) for _ in range(300)], "fields-lean")
    messages = [told(at % 200) for at in range(400)]
    sender, receiver = codec.stream(), codec.stream()
    tracemalloc.start()
    try:
        for at, message in enumerate(messages):
            assert receiver.decompress(sender.compress(message, at), at) == message
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sender._state.entities) == len(receiver._state.entities) == 200
    assert held < 500_000


def test_what_repeats_is_learned_topic_by_topic() -> None:
    """Devices that do not say who they are take turns: what stays on each topic is never what came just before."""
    rng = random.Random(5)
    places = [b"%.5f" % rng.uniform(0, 90) for _ in range(40)]
    messages = [b'{"lat":%s,"on":%d}' % (places[at % 40], rng.randrange(2)) for at in range(800)]
    topics = [b"devices/%d" % (at % 40) for at in range(400)]
    sizes = []
    for known in ((), topics):
        learned = train(messages[:400], SIZE, FIELDS, family=FAMILY, topics=known)
        sender = FieldsCodec("a test", learned.content).stream()
        sizes.append(sum([len(sender.compress(message, 0)) for message in messages[400::40]]))
    assert sizes[1] < 0.7 * sizes[0]


def record(number: int, rng: random.Random) -> bytes:
    """What a small device sends: a structure."""
    return struct.pack(
        "<BIhHf", 1, 1_700_000_000 + 5 * number, 2_100 + number // 9, rng.randrange(100), rng.randrange(900) / 10
    )


def test_records_of_bytes_are_cut_into_numbers() -> None:
    rng = random.Random(2)
    records = [record(number, rng) for number in range(500)]
    found = find_columns(records[:300])
    assert (4, (LITTLE, 4)) in found
    assert (4, (SINGLE_LITTLE, 1)) in found
    codec = codec_of(records[:300])
    sender, receiver = codec.stream(), codec.stream()
    frames = [sender.compress(each, at) for at, each in enumerate(records[300:])]
    assert [receiver.decompress(frame, at) for at, frame in enumerate(frames)] == records[300:]
    assert sum(map(len, frames)) < 4.5 * len(frames)
    assert [codec.decompress(codec.compress(each)) for each in records[300:]] == records[300:]
    (told,) = [
        line for line in describe_model(load_model(split_fields_content(codec._content).model)) if ": 4 B>" in line
    ]
    assert "bits each" in told


def test_noise_has_no_columns() -> None:
    rng = random.Random(4)
    assert find_columns([rng.randbytes(40) for _ in range(300)]) == []


@given(values=st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=20), at=st.integers(0, 7))
def test_any_record_comes_back(values: list[bytes], at: int) -> None:
    codec = codec_of([struct.pack(">d", 20 + number / 8) for number in range(20)])
    sender, receiver = codec.stream(), codec.stream()
    for value in values:
        assert codec.decompress(codec.compress(value)) == value
        assert receiver.decompress(sender.compress(value, at), at) == value


def test_numbers_that_are_foretold_too_large_come_back() -> None:
    """A reference times its factor may be beyond every number that can be told."""
    codec = codec_of([b'{"s":%d,"ns":%d}' % (at, 1_000_000 * at + at % 3) for at in range(1, 200)])
    for first in (b"99999999999999999", b"-99999999999999999", b"0"):
        for second in (b"99999999999999999", b"-99999999999999999", b"7"):
            message = b'{"s":%s,"ns":%s}' % (first, second)
            assert codec.decompress(codec.compress(message)) == message


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A message of the family in which something else stands somewhere."""
    message = draw(st.sampled_from(readings(40, seed=7)))
    begin = draw(st.integers(0, len(message)))
    end = draw(st.integers(begin, min(len(message), begin + 12)))
    return message[:begin] + draw(st.binary(max_size=12)) + message[end:]


ANY_MESSAGE = st.one_of(mutated(), st.binary(max_size=300), st.text('019.-:,"{ aZ\\', max_size=60).map(str.encode))


@given(message=ANY_MESSAGE)
def test_every_byte_string_comes_back(message: bytes) -> None:
    for codec in (TRAINED, BESIDE):
        assert codec.decompress(codec.compress(message)) == message


@given(messages=st.lists(ANY_MESSAGE, max_size=12))
def test_every_byte_string_comes_back_in_a_stream(messages: list[bytes]) -> None:
    sender, receiver = TRAINED.stream(), TRAINED.stream()
    for message in messages:
        assert receiver.decompress(sender.compress(message, 7), 7) == message


@given(samples=st.lists(ANY_MESSAGE.filter(bool), min_size=1, max_size=40), messages=st.lists(ANY_MESSAGE, max_size=6))
@settings(deadline=None)
def test_whatever_was_learned_every_byte_string_comes_back(samples: list[bytes], messages: list[bytes]) -> None:
    codec = codec_of(samples)
    sender, receiver = codec.stream(), codec.stream()
    for message in [*messages, *samples[:4]]:
        assert codec.decompress(codec.compress(message)) == message
        assert receiver.decompress(sender.compress(message, 7), 7) == message


def test_long_messages_go_another_way() -> None:
    for length in (MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, 100_000):
        message = (b"0123456789, " * 10_000)[:length]
        assert TRAINED.decompress(TRAINED.compress(message)) == message
    sender, receiver = TRAINED.stream(), TRAINED.stream()
    for message in (readings(1)[0], b"x" * 5_000, readings(2)[1]):
        assert receiver.decompress(sender.compress(message, 7), 7) == message


# -- what is refused


@given(data=st.one_of(st.binary(max_size=64), st.binary(min_size=1, max_size=64).map(lambda data: data * 400)))
def test_any_frame_gives_a_message_of_its_room_or_an_error(data: bytes) -> None:
    stream = TRAINED.stream()
    for decompress in (TRAINED.decompress, lambda data, bytes_max: stream.decompress(data, 3, bytes_max=bytes_max)):
        try:
            message = decompress(data, bytes_max=1_000)
        except DictionaryError:
            continue
        assert len(message) <= 1_000


def test_a_lost_frame_is_noticed() -> None:
    sender, receiver = TRAINED.stream(), TRAINED.stream()
    messages = [readings(1)[0], b"\x00 no reading", readings(2)[1], readings(3)[2]]
    frames = [sender.compress(message, at) for at, message in enumerate(messages)]
    receiver.decompress(frames[0], 0)
    for lost in (1, 2):
        with pytest.raises(DictionaryError, match=f"number {lost + 1} does not follow: {lost} is expected"):
            receiver.decompress(frames[lost + 1], lost)


def test_frames_that_cost_nothing_end() -> None:
    """A word with all but a few slots of its table takes no bit: only the message's room ends such a text."""
    vocabulary = Vocabulary([b"w" * 200], [1] * SPECIALS + [1 << 22])
    with pytest.raises(DictionaryError, match="more than a message"):
        vocabulary.take(Unfolding((1 << 4_000) - 1, MESSAGE_BYTES_MAX))


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x01", b"\x01\x00", b"\xff", b"\xff\xff", b"\xfe" * (FRAME_BYTES_MAX + 1)], ids=repr
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(DictionaryError, match="a test"):
        TRAINED.decompress(data)


@given(data=st.data())
@settings(deadline=None)
def test_any_model_is_refused_or_is_lossless(data: st.DataObject) -> None:
    content = bytearray(TRAINED._content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    codec = FieldsCodec("a test", bytes(content[: data.draw(st.integers(len(content) - 3, len(content)))]))
    message = data.draw(ANY_MESSAGE)
    try:
        sender, receiver = codec.stream(), codec.stream()
    except DictionaryError:
        return
    assert codec.decompress(codec.compress(message)) == message
    assert receiver.decompress(sender.compress(message, 7), 7) == message


@given(content=st.binary(max_size=80))
def test_any_content_is_a_dictionary_or_an_error(content: bytes) -> None:
    for begun in (content, b"\x80\x00\x01" + content):
        try:
            message = FieldsCodec("a test", begun).compress(b"a message")
        except DictionaryError:
            continue
        assert FieldsCodec("a test", begun).decompress(message) == b"a message"


@given(share=st.integers(0, 255), preset=st.binary(max_size=300), model=st.binary(min_size=1, max_size=300))
def test_content_comes_apart_as_it_was_joined(share: int, preset: bytes, model: bytes) -> None:
    assert split_fields_content(join_fields_content(share, preset, model)) == (share, preset, model)


def test_a_model_is_what_its_bytes_say() -> None:
    model = split_fields_content(TRAINED._content).model
    assert dump_model(load_model(model)) == model
    with pytest.raises(DictionaryError, match="version 9"):
        load_model(b"\x09" + model[1:])
    with pytest.raises(DictionaryError, match="follow the end"):
        load_model(model + b"\x00")


def test_tables_of_positions_take_no_more_memory_than_a_model_may() -> None:
    """Three bytes say a table of 256 letters: a model of 64 KiB would have 20,000 of them."""
    position, fields = b"\x01\x00\x02", 80
    run = b"\x02\x00\x00" + b"\x09\x01\xff\x01" + b"\xc8\x01" + position * 200 + b"\x01\x01"
    model = b"\x01%c" % (fields + 1) + b"\x00\x00\x01\x01\x01" + b"%c\x01" % fields + b"\x01" * fields + run * fields
    tracemalloc.start()
    try:
        with pytest.raises(DictionaryError, match="letters"):
            load_model(model + b"\x00" + b"\x01" * SPECIALS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20


def test_what_is_learned_has_no_more_tables_of_positions_than_may_be_read() -> None:
    """Forty columns of identifiers, each with tables for sixteen characters."""
    rng = random.Random(1)
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def identifier() -> str:
        return "".join([rng.choice(letters[at : at + 3]) for at in range(16)])

    samples = [("{" + ",".join([f'"c{at}":"{identifier()}"' for at in range(80)]) + "}").encode() for _ in range(60)]
    codec = codec_of(samples)
    assert codec.decompress(codec.compress(samples[0])) == samples[0]
    tables = [table for field in codec._parts[1].fields if field.run for table in field.run.positions if table]
    assert 0 < sum([len(table.steps) for table in tables]) <= LETTERS_MAX


def test_fields_within_fields_have_an_end() -> None:
    nested = b"\x00\x00\x01\x01\x01\x01" + b"\x01\x02a\x02a"
    with pytest.raises(DictionaryError):
        load_model(b"\x01\x09" + nested * 9)


# -- the parts


@given(
    text=st.one_of(st.text("0123456789.-e+", max_size=24).map(str.encode), st.binary(max_size=12)),
    form=st.integers(0, FORMS - 1),
    places=st.integers(0, 12),
)
def test_a_number_is_written_as_it_was(text: bytes, form: int, places: int) -> None:
    number = parse_number(text, form, places)
    if number is not None:
        assert render_number(number, form, places) == text


@given(
    number=st.integers(-(1 << 62), 1 << 62), edges=st.sets(st.integers(-NUMBER_MAX, NUMBER_MAX), min_size=2, max_size=9)
)
def test_a_histogram_says_every_number(number: int, edges: set[int]) -> None:
    histogram = Histogram(sorted(edges), [1 + at for at in range(len(edges) + 1)])
    steps: list[tuple[int, ...]] = []
    histogram.put(number, steps)
    unfolding = Unfolding(fold(steps), 0)
    assert (histogram.take(unfolding), unfolding.state) == (number, 0)


@given(run=st.binary(max_size=80))
def test_a_run_is_a_number_of_its_alphabet(run: bytes) -> None:
    alphabet = alphabet_of(run)
    assert set(run) <= set(ALPHABETS[alphabet])
    assert run_of(run_number(run, alphabet), alphabet, len(run)) == run


def test_patterns_of_messages_are_found() -> None:
    messages = [b'{"a":%d,"b":"x%d y"}' % (at, at % 7) for at in range(20)] + [b"%d up" % at for at in range(20)]
    found = find_patterns(messages, 4)
    assert [pattern.pieces for pattern in found] == [[b'{"a":', b',"b":"', b'"}'], [b"", b" up"]]
    assert [pattern.members for pattern in found] == [list(range(20)), list(range(20, 40))]


def test_shapes_that_are_all_different_are_compared_so_often_and_no_oftener(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    signs = [b"!", b"%", b"&", b"/", b"=", b"?", b"+", b"#"] * 6
    texts = [b"a".join(rng.sample(signs, len(signs))) for _ in range(60)]
    compared: list[int] = []
    middle = shapes._common_middle

    def counted(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[bytes, ...]:
        compared.append(len(one) * len(other))
        return middle(one, other)

    monkeypatch.setattr(shapes, "_common_middle", counted)
    find_patterns(texts, 4)
    assert sum(compared) > 400_000
    compared.clear()
    monkeypatch.setattr(shapes, "_COMPARED_MAX", 200_000)
    find_patterns(texts, 4)
    assert 100_000 < sum(compared) <= 200_000


def test_samples_without_any_short_message_give_a_model_of_nothing() -> None:
    content = FieldsTraining([b"x" * 9_000]).content(SIZE, b"xyz")
    codec = FieldsCodec("a test", content)
    assert codec.decompress(codec.compress(b"hello")) == b"hello"


def test_models_of_the_same_samples_do_not_depend_on_those_made_before() -> None:
    samples = readings(150)
    both = FieldsTraining(samples)
    assert both.content(SIZE, b"", lean=True) == FieldsTraining(samples).content(SIZE, b"", lean=True)
    assert both.content(SIZE, b"") == FieldsTraining(samples).content(SIZE, b"")


def test_what_was_too_much_for_one_way_is_not_made_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []

    class Counted(Building):
        def __init__(
            self, learned: MessageStructure, relations: Relations, comings: Comings, weight: float, admits: None
        ) -> None:
            weights.append(weight)
            super().__init__(learned, relations, comings, weight, admits)

    monkeypatch.setattr(training, "Building", Counted)
    monkeypatch.setattr(training, "PACKED_BYTES_MAX", 0)
    made = FieldsTraining(readings(30))
    made.content(SIZE, b"", lean=True)
    made.content(SIZE, b"")
    assert weights == [LEAN, LEAN / 2, LEAN / 4, LEAN / 50, RICH / 50]


def related(count: int, fields: int, seed: int = 1) -> list[bytes]:
    """Messages of many numbers that all follow from one another."""
    rng = random.Random(seed)
    return [b",".join([b"%d" % (base * at + rng.randrange(2)) for at in range(fields)]) for base in range(count)]


def test_what_is_tried_for_messages_of_many_related_fields_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = related(60, 80)
    tried: list[int] = []

    class Counted(Effort):
        def spend(self, values: int) -> None:
            tried.append(values)
            super().spend(values)

    monkeypatch.setattr(structure, "Effort", Counted)
    FieldsTraining(samples).content(SIZE, b"")
    assert sum(tried) > 500_000
    tried.clear()
    monkeypatch.setattr(structure, "EFFORT_MAX", 100_000)
    made = FieldsTraining(samples)
    contents = [made.content(size, b"", lean) for size in (1_000, SIZE) for lean in (True, False)]
    assert 100_000 <= sum(tried) < 300_000
    for content in contents:
        codec = FieldsCodec("a test", content)
        assert all(codec.decompress(codec.compress(sample)) == sample for sample in samples)


def test_as_much_of_the_newest_samples_as_one_may_look_at_is_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = readings(100), readings(100, 2)
    monkeypatch.setattr(training, "LEARNED_BYTES_MAX", sum(map(len, newer)))
    assert FieldsTraining(older + newer).content(SIZE, b"") == FieldsTraining(newer).content(SIZE, b"")


def test_a_model_tells_people_what_it_learned() -> None:
    lines = list(describe_model(load_model(split_fields_content(TRAINED._content).model)))
    assert lines[0].startswith('{"device":"<')
    told = "\n".join(lines)
    assert re.search(r"<\d+> [\d.]+ bits: number, 2 x <\d+> \+ \(0 to 2\)", told), told
    assert re.search(r"<\d+>-<\d+>-<\d+>T<\d+>:<\d+>:<\d+>Z", told), told
    assert "one of 2: 'true' " in told
