"""Sealed records: what is opened is what was sealed, whole and in order, or the link ends."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import AuthenticationError, PeerError
from lexicast.cluster.protocol.key_agreement import KeyAgreement
from lexicast.cluster.protocol.link_proofs import DIALLER, LISTENER, Heard, is_proof, proof
from lexicast.cluster.protocol.sealed_records import LENGTH_BYTES, RECORD_BYTES_MAX, TAG_BYTES, Opener, Sealer

SECRET = b"s" * 32
# Keys change within a handful of records.
RECORDS_A_KEY = 3
WRITES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=9)


def opened(pieces: list[bytes]) -> tuple[bytes, bool]:
    """What comes out of them, and whether something was noticed."""
    opener, plain = Opener(SECRET, RECORDS_A_KEY), b""
    try:
        for piece in pieces:
            plain += b"".join(opener.open(piece))
    except PeerError:
        with pytest.raises(AuthenticationError):
            opener.open(b"")
        return plain, True
    return plain, False


def sealed(writes: list[bytes]) -> list[bytes]:
    sealer = Sealer(SECRET, RECORDS_A_KEY)
    return [sealer.seal(write) for write in writes]


@given(WRITES, st.integers(1, 200))
def test_what_is_sealed_comes_out_however_its_bytes_come(writes: list[bytes], size: int) -> None:
    data = b"".join(sealed(writes))
    assert opened([data[at : at + size] for at in range(0, len(data), size)]) == (b"".join(writes), False)


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 3 * RECORD_BYTES_MAX + 5])
def test_large_writes_are_several_records(size: int) -> None:
    data = Sealer(SECRET).seal(b"x" * size)
    records = -(-size // RECORD_BYTES_MAX)
    assert len(data) == size + records * (LENGTH_BYTES + TAG_BYTES)
    pieces = Opener(SECRET).open(data)
    assert [len(piece) for piece in pieces][:-1] == [RECORD_BYTES_MAX] * (records - 1)
    assert b"".join(pieces) == b"x" * size


@given(WRITES, st.data())
@settings(max_examples=300)
def test_no_bit_is_changed_unnoticed(writes: list[bytes], choose: st.DataObject) -> None:
    """Also in the length: what is waited for then is no record either, once it is there."""
    records = sealed(writes)
    data = bytearray(b"".join(records))
    at = choose.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << choose.draw(st.integers(0, 7))
    plain, noticed = opened([bytes(data)])
    whole, before = b"".join(writes), 0
    for write, record in zip(writes, records, strict=True):
        if at < len(record):
            break
        at, before = at - len(record), before + len(write)
    assert whole.startswith(plain)
    assert len(plain) <= before
    assert noticed or opened([bytes(data), bytes(RECORD_BYTES_MAX + TAG_BYTES)]) == (plain, True)


@given(WRITES.filter(lambda writes: len(writes) > 1), st.data())
@settings(max_examples=300)
def test_no_record_is_repeated_moved_or_left_out_unnoticed(writes: list[bytes], choose: st.DataObject) -> None:
    records = sealed(writes)
    one, other = choose.draw(st.lists(st.integers(0, len(records) - 1), min_size=2, max_size=2, unique=True))
    forms = {
        "repeated": [*records[: one + 1], *records[one:]],
        "left out": [*records[:one], *records[one + 1 :], b"\0\0\0\x20" + bytes(32)],
        "moved": [records[{one: other, other: one}.get(at, at)] for at in range(len(records))],
    }
    for form in forms.values():
        plain, noticed = opened([b"".join(form)])
        assert noticed
        assert b"".join(writes).startswith(plain)


@given(WRITES, st.data())
def test_of_what_is_cut_off_nothing_comes_out(writes: list[bytes], choose: st.DataObject) -> None:
    data = b"".join(sealed(writes))
    plain, noticed = opened([data[: choose.draw(st.integers(0, len(data) - 1))]])
    assert not noticed
    assert b"".join(writes).startswith(plain)
    assert len(plain) < sum(map(len, writes))


def test_one_direction_does_not_open_what_the_other_sealed_nor_another_link() -> None:
    (dialler, listener), _ = agreed(b"k" * 32)
    data = Sealer(dialler).seal(b"text")
    assert Opener(dialler).open(data) == [b"text"]
    for secret in (listener, *agreed(b"k" * 32)[0]):
        with pytest.raises(AuthenticationError):
            Opener(secret).open(data)


def test_a_record_is_not_sealed_twice_alike() -> None:
    sealer = Sealer(SECRET, RECORDS_A_KEY)
    records = [sealer.seal(b"the same") for _ in range(10 * RECORDS_A_KEY)]
    assert len(set(records)) == len(records)


@pytest.mark.parametrize("length", [0, TAG_BYTES, RECORD_BYTES_MAX + TAG_BYTES + 1, (1 << 32) - 1])
def test_a_length_that_there_is_not_is_refused_before_its_bytes_are_waited_for(length: int) -> None:
    with pytest.raises(PeerError, match=f"{length} bytes"):
        Opener(SECRET).open(length.to_bytes(LENGTH_BYTES, "big"))


def test_bytes_that_come_one_by_one_are_held_once() -> None:
    """Were all that has come copied each time, a record of 64 KiB would cost 2 GB of copies."""
    data = Sealer(SECRET).seal(b"x" * RECORD_BYTES_MAX)
    opener = Opener(SECRET)
    assert [piece for at in range(len(data)) for piece in opener.open(data[at : at + 1])] == [b"x" * RECORD_BYTES_MAX]


# -- where the secrets come from


def agreed(key: bytes, heard: bytes = b"same", other_key: bytes | None = None) -> Any:
    """Both sides' secrets: (the dialler's, the listener's), as each has them."""
    sides = []
    one, two = KeyAgreement(os.urandom(32)), KeyAgreement(os.urandom(32))
    for own, peer, its_key in ((one, two, key), (two, one, key if other_key is None else other_key)):
        said = Heard()
        said.add(heard)
        sides.append(own.agree(peer.public, its_key, said))
    return sides


def test_both_sides_have_the_same_secrets_and_each_direction_its_own() -> None:
    one, two = agreed(b"k" * 32)
    assert one == two
    assert one[0] != one[1]


def test_secrets_follow_from_the_key_too() -> None:
    one, two = agreed(b"k" * 32, other_key=b"x" * 32)
    assert not set(one) & set(two)


@pytest.mark.parametrize("public", [None, "p" * 32, b"", b"p" * 31, bytes(32), b"\1" + bytes(31)])
def test_what_is_no_public_key_is_refused(public: Any) -> None:
    """With the last two everybody would have the same secret."""
    with pytest.raises(PeerError, match="public key"):
        KeyAgreement(b"p" * 32).agree(public, b"k" * 32, Heard())


def heard(*messages: tuple[Any, ...]) -> Heard:
    made = Heard()
    for message in messages:
        made.add(*message)
    return made


def test_a_proof_covers_every_field_and_its_side() -> None:
    said: list[tuple[Any, ...]] = [(16, b"n", "cluster", 5), (17, b"m", "broker", "b", 1, {})]
    given = proof(b"key", DIALLER, heard(*said))
    assert is_proof(given, b"key", DIALLER, heard(*said))
    others = [said[::-1], said[:1], [said[0], (17, b"m", "broker", "c", 1, {})], [(16, b"n", "cluster", 4), said[1]]]
    assert not any([is_proof(given, b"key", DIALLER, heard(*other)) for other in others])
    assert not is_proof(given, b"key", LISTENER, heard(*said))
    assert not is_proof(given, b"other", DIALLER, heard(*said))


def test_where_one_message_ends_is_covered() -> None:
    assert heard((1, b"ab"), (2, b"")).digest() != heard((1, b"a"), (2, b"b")).digest()
