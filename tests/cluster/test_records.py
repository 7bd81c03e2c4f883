"""Control records come back as they went; anything else is a PeerError."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import PeerError
from lexicast.cluster.records import (
    ControlRecord,
    DictionaryStored,
    Dropped,
    EpochStart,
    ProducerSeen,
    Released,
    SessionEnded,
    SessionMoved,
    SessionSaved,
    Subscribed,
    Unsubscribed,
    pack_record,
    unpack_record,
)

KINDS = get_args(ControlRecord)
NUMBER = st.integers(-(2**63), 2**64 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": NUMBER,
    "str": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
    "tuple[int, ...]": st.lists(NUMBER, max_size=4).map(tuple),
}


def made(kind: type[ControlRecord]) -> st.SearchStrategy[ControlRecord]:
    hints = {name: kind.__annotations__[name] for name in kind._fields}
    texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in hints.items()}
    return st.builds(kind, **{name: VALUES[text] for name, text in texts.items()})


RECORD: st.SearchStrategy[ControlRecord] = st.one_of([made(kind) for kind in KINDS])


@given(RECORD)
def test_records_come_back(record: ControlRecord) -> None:
    back = unpack_record(pack_record(record))
    assert back == record
    assert type(back) is type(record)


@given(RECORD, st.data())
def test_mutated_records_are_records_or_peer_errors(record: ControlRecord, data: st.DataObject) -> None:
    packed = bytearray(pack_record(record))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        assert isinstance(unpack_record(bytes(packed)), KINDS)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_or_a_peer_error(data: bytes) -> None:
    with suppress(PeerError):
        unpack_record(data)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        0,
        (),
        (0,),
        (99, 1),
        ((), 1),
        (1, 1, 2),
        (1, 1, 2, "leader", 4),
        (1, "1", 2, "leader"),
        (1, True, 2, "leader"),
        (5, b"client", b"uid", 1),
        (6, b"uid", 7),
        (6, b"uid", (1, "2")),
        {1: 2},
    ],
)
def test_what_is_no_record_is_refused(fields: Any) -> None:
    with pytest.raises(PeerError, match="control record"):
        unpack_record(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("record", "packed"),
    [
        (EpochStart(1, 2, "a"), (1, 1, 2, "a")),
        (Subscribed("b", 1, "f", 2, 3), (2, "b", 1, "f", 2, 3)),
        (Unsubscribed("b", "f"), (3, "b", "f")),
        (
            SessionSaved("c", b"u", 1, "b", 2, 3, 4, 5, 6, b"f", b"w", b"p"),
            (9, "c", b"u", 1, "b", 2, 3, 4, 5, 6, b"f", b"w", b"p"),
        ),
        (
            SessionSaved("c", b"u", 1, "b", 2, 3, 4, 5, 6, b"f", b"w", b"p", "ada"),
            (9, "c", b"u", 1, "b", 2, 3, 4, 5, 6, b"f", b"w", b"p", "ada"),
        ),
        (SessionMoved("c", 1, "b", 2, 3, 4, 5, 6, b"p"), (10, "c", 1, "b", 2, 3, 4, 5, 6, b"p")),
        (Dropped(), (11,)),
        (SessionEnded("c", b"u", 1), (5, "c", b"u", 1)),
        (Released(b"u", (1, 2)), (6, b"u", (1, 2))),
        (Released(b"u", (1, 2), 3), (6, b"u", (1, 2), 3)),
        (DictionaryStored(1, "f", b"d"), (7, 1, "f", b"d")),
        (ProducerSeen(b"p", 1, 2), (8, b"p", 1, 2)),
    ],
)
def test_stored_forms_never_change(record: ControlRecord, packed: tuple[Any, ...]) -> None:
    """Stores of every version hold them."""
    assert pack_record(record) == msgpack.packb(packed)
