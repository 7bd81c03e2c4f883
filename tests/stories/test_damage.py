"""Bits flipped anywhere in a store that holds every kind of row: a whole cluster starts on it and serves the rest."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexicast.actors.coordination.server import LocalCoordination
from lexicast.bench.damage import driver as damage
from lexicast.bench.damage.file_rows import FileRows
from lexicast.bench.damage.served_store import COORDINATION, COORDINATOR_NAME, GROUPS, fill_store
from lexicast.storage.file.keys import name_key
from lexicast.storage.file.sealing import unseal
from lexicast.storage.tables.databases import Databases
from lexicast.storage.upkeep.row_inspection import out_of_order


class Made(NamedTuple):
    folder: Path
    known: damage.Known


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        asyncio.run(fill_store(Path(folder)))
        yield Made(Path(folder), damage.known_content(Path(folder) / COORDINATOR_NAME))


def run(made: Made, flipped: list[damage.Flip], told: list[damage.Flip]) -> str:
    """Serve the store with these bits flipped, looking for all but what `told` excuses: what was not served."""

    async def serve() -> str:
        coordination = LocalCoordination(copy / COORDINATION, GROUPS, (COORDINATOR_NAME,))
        try:
            return await damage.serve_damaged(made.known, flipped, told, copy, coordination)
        finally:
            coordination.close()

    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        copy = Path(folder)
        shutil.copytree(made.folder / COORDINATION, copy / COORDINATION)
        return asyncio.run(serve())


def test_the_store_holds_every_kind_of_row_and_the_walk_finds_what_lmdb_does(made: Made) -> None:
    counts = Counter(row.table for row in made.known.rows)
    assert set(counts) == set(Databases._fields)
    found = {}
    with TemporaryDirectory(prefix="lexicast-test-") as folder:
        (Path(folder) / "data.mdb").write_bytes(made.known.content)
        with lmdb.open(folder, readonly=False, max_dbs=len(counts)) as environment, environment.begin() as txn:
            for name in counts:
                database = environment.open_db(name.encode(), txn, create=False)
                found.update({(name, key): value for key, value in txn.cursor(database)})
    assert found == {(row.table, row.key): made.known.value(row) for row in FileRows(made.known.content)}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_bits_are_flipped_everything_else_is_served(made: Made, seed: int) -> None:
    flipped = damage.flips(made.known, random.Random(seed))
    assert run(made, flipped, flipped) == ""


@pytest.mark.parametrize("table", sorted(set(Databases._fields)))
def test_a_damaged_key_and_a_damaged_value_of_each_table_cost_themselves(made: Made, table: str) -> None:
    dice = random.Random(table)
    rows = dice.sample([row for row in made.known.rows if row.table == table], 2)
    flipped = [damage.Flip(rows[0], dice.randrange(8 * len(rows[0].key)))]
    if rows[1].value_bytes:
        flipped.append(damage.Flip(rows[1], 8 * len(rows[1].key) + dice.randrange(8 * rows[1].value_bytes)))
    assert run(made, flipped, flipped) == ""


@pytest.mark.parametrize("in_keys", [False, True])
@pytest.mark.parametrize("kind", ["state", "kept"])
def test_a_retained_publication_is_served_although_its_topic_has_lost_both_its_rows(
    made: Made, kind: str, in_keys: bool
) -> None:
    """Neither its id nor its name can be made anew from the other: its record names the topic, its row the id."""
    rows = {(row.table, row.key): row for row in made.known.rows}
    key, topic = next(
        (row.key, name)
        for row in made.known.rows
        if row.table == "names" and (name := unseal("names", row.key, made.known.value(row))).startswith(kind.encode())
    )
    hit = [rows["names", key], rows["ids", name_key(topic)]]
    flipped = [damage.Flip(row, 8 * (len(row.key) - 1 if in_keys else len(row.key) + 1)) for row in hit]
    assert run(made, flipped, flipped) == ""


def test_what_is_lost_and_not_excused_is_found(made: Made) -> None:
    heads = [damage.Flip(row, 8 * len(row.key)) for row in made.known.rows if row.table == "log"]
    flip = next(flip for flip in heads if damage.lost(made.known, [flip]) & made.known.records.keys())
    assert "is missing" in run(made, [flip], [])


def keys(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


@pytest.mark.parametrize(
    ("order", "sound", "gone"),
    [
        ("abcdef", "xxxxxx", ""),
        ("abzdef", "xx.xxx", "z"),  # too large: hides d, e, f
        ("abcdaf", "xxxx.x", "a"),  # too small: hides a to d
        ("abcdxf", "xxxx.x", "x"),
        ("abcdef", "xx.xxx", ""),  # damaged, but it hides nothing
        ("abzdye", "xx.x.x", "zy"),
        ("acbdef", "xxxxxx", "c"),  # sound, put in a wrong place: put again
        ("zab", ".xx", "z"),
        ("aba", "xx.", "a"),
        ("abbd", "x.xx", "b"),  # it has become the key of its neighbour
    ],
)
def test_as_few_keys_leave_a_tree_as_must_and_sound_ones_last(order: str, sound: str, gone: str) -> None:
    found = out_of_order(keys(order), [mark == "x" for mark in sound])
    assert [order[at] for at in found] == list(gone)
    assert all(sound[at] != "x" for at in found) or "." not in sound


@given(st.lists(st.integers(0, 255), unique=True, max_size=60), st.data())
def test_sound_keys_in_order_all_stay(numbers: list[int], data: st.DataObject) -> None:
    order = [bytes([number]) for number in sorted(numbers)]
    sound = [True] * len(order)
    for at in data.draw(st.lists(st.integers(0, max(0, len(order) - 1)), max_size=6)) if order else ():
        order[at], sound[at] = bytes([data.draw(st.integers(0, 255))]), False
    gone = set(out_of_order(order, sound))
    assert all(not sound[at] for at in gone)
    left = [key for at, key in enumerate(order) if at not in gone]
    assert left == sorted(set(left))
