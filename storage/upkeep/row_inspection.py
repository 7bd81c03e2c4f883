"""The inspection of all rows after opening: what LMDB needs to search a table, and what can be made anew.

LMDB finds a row by halving: a damaged key that is out of order hides its sound neighbours. So every table's keys are
looked through once; a key out of order leaves the tree (it names nothing any more), a sound row that was put in the
wrong place beside it is put again. Rows of tables are compared with their checksums on the way, and where topics' ids
or names, or the times at which sessions are due, are damaged, they are made anew from each other; a topic that has lost
both its id and its name, from the record that is retained of it.

A million rows take a second (measured 0.3 us a key, 0.9 us a row). At opening it takes AT_OPEN_S at most, the rest
of it is housekeeping's: until it is over, neighbours of a damaged key may be missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from lexicast.cluster.clock import Clock

from ..environment.environment import Environment
from ..file.damage import Ledger
from ..file.keys import parse_log_key
from ..file.sealing import DamageError
from ..file.table import ReadTransaction, Table
from ..index.log_index import LogIndex
from ..log.block_format import verified_head
from ..tables.databases import Databases, raw_database
from ..tables.state import State
from ..tables.topics import TopicIds, topic_id_of

if TYPE_CHECKING:
    import lmdb

AT_OPEN_S: Final = 0.5
_ROWS_AT_OPEN: Final = 50_000
_ROWS_A_STEP: Final = 2_000

# Where keys alone are looked at: values lie on pages of their own, and their readers verify them.
_BY_POSITION: Final = ("log", "kept")
_BY_KEY: Final = (*_BY_POSITION, "expiry", "superseded", "dual")
_KEY_BYTES: Final = {"log": (10,), "kept": (10,), "expiry": (18,), "superseded": (10,), "dual": (10, 17)}
_SHOWN_BYTES: Final = 32
# Whatever the start needs comes first, what may be large last.
_ORDER: Final = (
    "promises",
    "counted",
    "groups",
    "epochs",
    "ids",
    "names",
    "session_due",
    "sessions",
    "subscriptions",
    "dictionaries",
)
_THEN: Final = ("retained", "marks", "producers", "kept", "expiry", "superseded", "dual", "log")

RecordedTopic: TypeAlias = Callable[[ReadTransaction, bytes, bytes], bytes | None]


class RowInspection:
    """One walk over a store that this process owns. Writer thread only."""

    def __init__(
        self,
        environment: Environment,
        index: LogIndex,
        ids: TopicIds,
        state: State,
        clock: Clock,
        recorded_topic: RecordedTopic,
    ) -> None:
        """`recorded_topic` reads the topic of a retained publication, by its row's key and data, out of its record."""
        self._environment = environment
        self._databases: Databases = environment.databases
        self._ledger: Ledger = environment.damage
        self._index = index
        self._ids = ids
        self._state = state
        self._clock = clock
        self._recorded_topic = recorded_topic
        self._left = [name for name in (*_ORDER, *_THEN) if name in Databases._fields]
        self._after: bytes | None = None
        self._damaged: set[str] = set()

    @property
    def done(self) -> bool:
        """All rows have been looked at."""
        return not self._left

    def at_open(self) -> None:
        """As much as an opening has time for."""
        until = self._clock.monotonic() + AT_OPEN_S
        while self._left and self._clock.monotonic() < until:
            self._slice(_ROWS_AT_OPEN)

    def step(self) -> bool:
        """A bounded step; False when the walk is over."""
        if self.done:
            return False
        self._slice(_ROWS_A_STEP)
        return True

    def _slice(self, limit: int) -> None:
        name = self._left[0]
        keys, sound = self._look(name, limit)
        if any([a >= b for a, b in pairwise(keys)]):
            if name in _BY_POSITION:
                sound = self._placed(name, len(keys))
            self._take_out(name, keys, sound)
        if len(keys) > limit:
            self._after = next((key for key, good in zip(keys[::-1], sound[::-1], strict=True) if good), keys[-1])
            return
        self._left.pop(0)
        self._after = None
        self._finished(name)

    def _look(self, name: str, limit: int) -> tuple[list[bytes], list[bool]]:
        """The next keys, the last of the slice before among them, and of each whether its row is sound."""
        table: Table | None = getattr(self._databases, name) if name not in _BY_KEY else None
        sound: list[bool] = []
        keys: list[bytes] = []
        with self._at(name) as cursor:
            there = bool(cursor.key())
            while there and len(keys) <= limit:
                key = bytes(cursor.key())
                keys.append(key)
                good = self._is_key_of(name, key) if table is None else table.is_sound(key, cursor.value())
                sound.append(good)
                there = cursor.next()
        if not all(sound):
            self._damaged.add(name)
        return keys, sound

    def _is_key_of(self, name: str, key: bytes) -> bool:
        """A key has the form that keys of this table have; where not, that is noted."""
        if len(key) in _KEY_BYTES[name]:
            return True
        error = DamageError(name, -1, -1, f"the key {key[:_SHOWN_BYTES]!r} is of another form")
        if name == "dual":
            self._index.damaged(error)
        else:
            self._ledger.note(error)
        return False

    def _placed(self, name: str, count: int) -> list[bool]:
        """Of as many keys from where the slice began, whether their blocks say that they belong there."""
        found = []
        with self._at(name) as cursor:
            for _ in range(count):
                try:
                    verified_head(cursor.value(), *parse_log_key(cursor.key()))
                    found.append(True)
                except DamageError:
                    found.append(False)
                cursor.next()
        return found

    @contextmanager
    def _at(self, name: str) -> Iterator[lmdb.Cursor[memoryview]]:
        """A cursor where the slice begins."""
        with self._environment.snapshot() as txn, txn.cursor(raw_database(self._databases, name)) as cursor:
            _ = cursor.first() if self._after is None else cursor.set_range(self._after)
            yield cursor

    def _take_out(self, name: str, keys: list[bytes], sound: list[bool]) -> None:
        """Take keys out of the tree that are not in order; those of sound rows are put again."""
        places = out_of_order(keys, sound)
        database = raw_database(self._databases, name)
        again: list[tuple[bytes, bytes]] = []
        with self._environment.begin() as txn:
            for place in reversed(places):
                with txn.cursor(database) as cursor:
                    there = cursor.first() if self._after is None else cursor.set_range(self._after)
                    for _ in range(place):
                        there = there and cursor.next()
                    if there and bytes(cursor.key()) == keys[place]:
                        if sound[place] and name not in ("dual", "expiry"):
                            again.append((keys[place], bytes(cursor.value())))
                        cursor.delete()
            for key, value in again:
                txn.put(key, value, db=database, overwrite=False)
        for place in places:
            if name == "dual":
                self._index.damaged(DamageError(name, -1, -1, f"the key {keys[place]!r} is out of order"))
            elif not sound[place] or name == "expiry":
                self._ledger.note(DamageError(name, -1, -1, f"the key {keys[place]!r} is out of order"))
                self._damaged.add(name)

    def _finished(self, name: str) -> None:
        if name == "names" and self._damaged & {"ids", "names"}:
            self._ids.mend()
        elif name == "sessions" and "session_due" in self._damaged:
            self._state.sessions.mend_due(self._environment.begin)
        elif name == "log" and self._damaged >= {"ids", "names"}:
            self._name_retained()  # last: by now nothing hides a record

    def _name_retained(self) -> None:
        """What is retained of topics that have lost both rows is found by its topic again."""
        retained, names = self._databases.retained, self._databases.names
        after: bytes | None = None
        while True:
            with self._environment.snapshot() as read:
                rows = retained.rows(read, b"", after)
                nameless = [(key, row) for key, row in rows if names.get(read, key) is None]
                found = [(key, self._recorded_topic(read, key, row)) for key, row in nameless]
            with self._environment.begin() as txn:
                for key, topic in found:
                    if topic is not None:
                        self._ids.name_again(txn, topic_id_of(key, "retained"), topic)
            if not rows:
                return
            after = rows[-1][0]


def out_of_order(keys: Sequence[bytes], sound: Sequence[bool]) -> list[int]:
    """The places of as few keys as must go for the others to ascend; sound ones go last."""
    kept = set(_ascending([at for at, good in enumerate(sound) if good], keys))
    gone = []
    following: bytes | None = None
    ends: list[bytes | None] = [None] * len(keys)
    for at in range(len(keys) - 1, -1, -1):
        ends[at] = following
        if at in kept:
            following = keys[at]
    before: bytes | None = None
    for at, key in enumerate(keys):
        end = ends[at]
        if at in kept:
            before = key
        elif not sound[at] and (before is None or before < key) and (end is None or key < end):
            before = key  # damaged, but where it lies it hides nothing
        else:
            gone.append(at)
    return gone


def _ascending(places: Sequence[int], keys: Sequence[bytes]) -> Iterator[int]:
    """A longest subsequence of `places` whose keys ascend (patience sorting), from its end to its beginning."""
    tails: list[bytes] = []
    ends: list[int] = []
    previous: dict[int, int] = {}
    for at in places:
        pile = bisect_left(tails, keys[at])
        if pile:
            previous[at] = ends[pile - 1]
        if pile == len(tails):
            tails.append(keys[at])
            ends.append(at)
        else:
            tails[pile], ends[pile] = keys[at], at
    at_last = ends[-1] if ends else None
    while at_last is not None:
        yield at_last
        at_last = previous.get(at_last)
