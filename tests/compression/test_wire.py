"""Tags, aliases, bindings: a receiver in order always means what the sender meant; nothing is lost in recoding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.wire import AliasTable, Bindings, Introductions, Recoder, split_tag

ID = st.integers(2, 40)


def dictionary(text: str, codec: str = ZSTD, family: bytes = b"a/+") -> Dictionary:
    return Dictionary(family, codec, (text * 20).encode())


def payload(draw: random.Random) -> bytes:
    return f'{{"speed": {draw.randrange(1000)}, "unit": "km/h"}}'.encode()


@settings(max_examples=200)
@given(
    turns=st.lists(st.lists(ID, min_size=1, max_size=6), max_size=60),
    last_alias=st.integers(2, 9),
    late=st.integers(0, 59),
)
def test_a_receiver_resolves_to_the_id_the_sender_meant(turns: list[list[int]], last_alias: int, late: int) -> None:
    """Connections share one table; one joins late, one sees only some of the traffic. Aliases wrap around."""
    table = AliasTable(last_alias)
    connections = [(Introductions(), Bindings()) for _ in range(3)]
    log_reader, seen = Bindings(), 0
    for turn, ids in enumerate(turns):
        table.next_turn()
        tagged = [(table.alias_for(id), id) for id in ids]  # the batch is encoded before anything is written
        for binding in table.since(seen):
            log_reader.bind(binding.pack())
        seen = table.version
        for at, (introductions, bindings) in enumerate(connections):
            if (at == 1 and turn < late) or (at == 2 and turn % 3):
                continue
            for binding in introductions.lacking(table, frozenset(alias for alias, _ in tagged)):
                bindings.bind(binding.pack())
            assert introductions.lacking(table, frozenset(alias for alias, _ in tagged)) == []
            for alias, id in tagged:
                assert alias == RAW or bindings.dictionary_id(alias) == log_reader.dictionary_id(alias) == id


@given(ids=st.lists(ID, min_size=1, max_size=200), last_alias=st.integers(2, 12))
def test_the_least_recently_used_alias_is_bound_anew(ids: list[int], last_alias: int) -> None:
    table = AliasTable(last_alias)
    recent: list[int] = []
    for id in ids:
        table.next_turn()
        version = table.version
        alias = table.alias_for(id)
        assert 2 <= alias <= last_alias
        assert (table.version == version) == (id in recent)
        recent = [*[other for other in recent if other != id], id][-(last_alias - 1) :]


def test_an_alias_used_in_this_turn_is_not_taken() -> None:
    table = AliasTable(3)
    assert {table.alias_for(10), table.alias_for(11)} == {2, 3}
    assert table.alias_for(12) == RAW
    table.next_turn()
    first = table.alias_for(10)
    assert table.alias_for(12) not in (RAW, first)
    assert table.binding(first).dictionary == 10


def test_since_gives_only_what_is_newer_and_current() -> None:
    table = AliasTable(3)
    for id in (10, 11, 12, 13):
        table.next_turn()
        table.alias_for(id)
    assert [binding.dictionary for binding in table.since(0)] == [12, 13]
    assert [binding.dictionary for binding in table.since(3)] == [13]
    assert table.since(table.version) == ()


def test_a_connection_hears_only_of_what_it_is_sent() -> None:
    table, introductions = AliasTable(), Introductions()
    aliases = [table.alias_for(id) for id in range(10, 60)]
    assert [b.dictionary for b in introductions.lacking(table, frozenset((RAW, DEFLATE, aliases[3])))] == [13]
    assert introductions.needs_dictionary(13)
    assert not introductions.needs_dictionary(13)
    with pytest.raises(DictionaryError, match="alias 200 is not bound"):
        introductions.lacking(table, frozenset((200,)))


@pytest.mark.parametrize(
    "bad", [b"", b"\x02", b"\x02" + b"\0" * 7, b"\x01" + b"\0" * 7 + b"\x09", b"\x02" + b"\0" * 7 + b"\x01"]
)
def test_malformed_bindings_change_nothing(bad: bytes) -> None:
    bindings = Bindings()
    good = b"\x02" + (77).to_bytes(8, "big")
    bindings.bind(good)
    with pytest.raises(DictionaryError):
        bindings.bind(bad if not bad else good.replace(b"\x02", b"\x03") + bad)
    assert bindings.dictionary_id(2) == 77
    with pytest.raises(DictionaryError, match="alias 3"):
        bindings.dictionary_id(3)


def test_an_untagged_payload_is_refused() -> None:
    assert split_tag(b"\x00") == (0, b"")
    with pytest.raises(DictionaryError, match="without tag"):
        split_tag(b"")


@pytest.mark.parametrize("codec", [ZSTD, DEFLATE_PRESET])
def test_payloads_pass_from_publisher_to_store_to_both_kinds_of_subscriber(codec: str) -> None:
    shared = dictionary('{"speed": 120, "unit": "km/h"}', codec)
    publisher, broker, subscriber = Recoder(), Recoder(), Recoder()
    for side in (publisher, broker, subscriber):
        side.add(shared)
    up, down = AliasTable(), AliasTable()
    down.alias_for(999)  # the two directions number their aliases apart
    up_bindings, down_bindings = Bindings(), Bindings()
    draw, kinds = random.Random(1), set()
    for message in [b"", b"\0", b"a" * 500, draw.randbytes(40), *(payload(draw) for _ in range(50))]:
        tag, data = publisher.to_aware(*publisher.encode(message, shared), up)
        for binding in up.since(0):
            up_bindings.bind(binding.pack())
        stored = broker.from_aware(bytes((tag,)) + data, up_bindings)
        kinds.add(stored.encoding)
        assert broker.to_raw(*stored) == message
        tag, data = broker.to_aware(*stored, down)
        assert data == stored.data  # passed through untouched
        for binding in down.since(0):
            down_bindings.bind(binding.pack())
        assert subscriber.to_raw(*subscriber.from_aware(bytes((tag,)) + data, down_bindings)) == message
    assert kinds == {RAW, FIRST_DICTIONARY}


def test_without_dictionary_deflate_or_raw() -> None:
    recoder = Recoder()
    assert recoder.encode(b"") == (RAW, None, b"")
    assert recoder.encode(b"xyz") == (RAW, None, b"xyz")
    long = recoder.encode(b"na" * 100)
    assert (long.encoding, long.data) == (DEFLATE, Deflate().compress(b"na" * 100))
    assert recoder.all_to_raw(DEFLATE, None, [long.data, long.data]) == [b"na" * 100] * 2
    assert recoder.all_to_raw(RAW, None, [b"1", b"2"]) == [b"1", b"2"]


def test_a_missing_dictionary_is_an_error_that_names_it() -> None:
    shared = dictionary("some words")
    with pytest.raises(DictionaryError, match=f"{shared.id:016x}.*fetch"):
        Recoder().to_raw(FIRST_DICTIONARY, shared.id, b"abc")
    with pytest.raises(DictionaryError, match="does not name it"):
        Recoder().to_raw(FIRST_DICTIONARY, None, b"abc")
    bindings = Bindings()
    bindings.bind(b"\x02" + shared.id.to_bytes(8, "big"))
    with pytest.raises(DictionaryError, match=f"{shared.id:016x}"):
        Recoder().from_aware(b"\x02abc", bindings)


def test_when_no_alias_is_left_the_payload_goes_raw() -> None:
    one, two = dictionary("one two three"), dictionary("four five six")
    recoder, table = Recoder(), AliasTable(2)
    message = b"four five six four five six!"
    encoded = recoder.encode(message, two)
    assert encoded.encoding == FIRST_DICTIONARY
    table.alias_for(one.id)
    assert recoder.to_aware(*encoded, table) == (RAW, message)
    table.next_turn()
    assert recoder.to_aware(*encoded, table) == (2, encoded.data)


def test_the_recoder_is_bounded() -> None:
    dictionaries = [dictionary(f"word {n} ") for n in range(30)]
    few = Recoder(dictionaries_max=5, coders_max=2)
    for one in dictionaries:
        few.add(one)
        few.encode(b"word word word word word", one)
    assert [one.id in few for one in dictionaries] == [False] * 25 + [True] * 5
    assert len(few._coders) <= 2
    small = Recoder(bytes_max=sum(len(d.content) for d in dictionaries[-3:]))
    for one in [*dictionaries, dictionaries[-1]]:
        small.add(one)
    assert sum(one.id in small for one in dictionaries) == 3
    assert small._bytes == sum(len(d.content) for d in dictionaries[-3:])


def test_a_bomb_stops_at_the_recoders_limit() -> None:
    recoder = Recoder(payload_bytes_max=1_000)
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        recoder.to_raw(DEFLATE, None, Deflate().compress(b"\0" * 1_001))
    assert recoder.to_raw(DEFLATE, None, Deflate().compress(b"\0" * 1_000)) == b"\0" * 1_000
