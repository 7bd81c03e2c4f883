"""The table of sessions: what their records in the log come to, and which of those records still count.

A row is one session as it stands, and the offsets of the records that it follows from: the last SessionSaved, the last
SessionMoved with a place, the last one without (-1: none). Whatever another record has replaced goes into `superseded`,
position by position, and `compaction` takes it out of the log: of a session that comes and goes for a week three
records are kept, of one that has ended none.

`session_due` names the sessions that nobody is connected to by the time at which something is to happen to them: their
will is due, or they are to be forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator
from typing import Final, NamedTuple

from lexicast.cluster.errors import PeerError
from lexicast.cluster.records import NEVER_US, SessionEnded, SessionMoved, SessionSaved, pack_record, unpack_record

from ..file.keys import group_prefix, name_key
from ..file.sealing import DamageError, unpacked_head
from ..file.table import AnyTransaction, WriteTransaction
from .databases import Databases
from .superseded_records import supersede

NONE: Final = -1

_OFFSETS: Final = struct.Struct("<qqq")
_U64: Final = struct.Struct(">Q")


class SessionRow(NamedTuple):
    """A session and the offsets of its records that count: saved, moved with a place, moved without."""

    saved: int
    placed: int
    taken: int
    session: SessionSaved

    @property
    def offsets(self) -> list[int]:
        """Those that there are."""
        return [offset for offset in self[:3] if offset != NONE]

    def follows(self, offset: int) -> bool:
        """It follows from the record at `offset`, or from a later one."""
        return offset <= self.saved or offset <= self.placed or offset <= self.taken


def due_us(session: SessionSaved) -> int:
    """When something is to happen to a session without a connection; 0: never."""
    return min([at for at in (session.will_us, session.expires_us) if 0 < at < NEVER_US], default=0)


def due_key(key: bytes, session: SessionSaved) -> bytes | None:
    """The row of a session in `session_due`, `key` being its own; None when nothing is to happen to it."""
    due = due_us(session)
    return _U64.pack(due) + key if due else None


class SessionTable:
    """See the module's docstring."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    # applying records

    def save(self, txn: WriteTransaction, group: int, offset: int, record: SessionSaved) -> None:
        """A whole session: what was known of it counts no more."""
        before = self.row(txn, group, record.client_id)
        if before is not None:
            if before.follows(offset):
                self._again(txn, group, before, offset)
                return
            self._supersede(txn, group, before.offsets)
        self._put(txn, group, before, SessionRow(offset, NONE, NONE, record))

    def move(self, txn: WriteTransaction, group: int, offset: int, record: SessionMoved) -> None:
        """Some fields of a session; without effect when there is none, or a newer generation."""
        before = self.row(txn, group, record.client_id)
        if before is None or record.generation < before.session.generation:
            self._supersede(txn, group, [offset])
            return
        if before.follows(offset):
            self._again(txn, group, before, offset)
            return
        moved = before.session._replace(
            generation=record.generation,
            owner=record.owner,
            incarnation=record.incarnation,
            connection=record.connection,
            expiry_s=record.expiry_s,
            expires_us=record.expires_us,
            will_us=record.will_us,
        )
        if record.place:
            self._supersede(txn, group, [o for o in (before.placed, before.taken) if o != NONE])
            row = SessionRow(before.saved, offset, NONE, moved._replace(place=record.place))
        else:
            self._supersede(txn, group, [o for o in (before.taken,) if o != NONE])
            row = SessionRow(before.saved, before.placed, offset, moved)
        self._put(txn, group, before, row)

    def end(self, txn: WriteTransaction, group: int, offset: int, record: SessionEnded) -> None:
        """A session is forgotten, if it still is that uid and no newer generation."""
        before = self.row(txn, group, record.client_id)
        if before is not None and not before.follows(offset):
            found = before.session
            if found.uid == record.uid and found.generation <= record.generation:
                self._supersede(txn, group, before.offsets)
                self._drop(txn, group, found)
        # Its own record last: what it ended leaves the log first, or a replay would bring it back.
        self._supersede(txn, group, [offset])

    def _again(self, txn: WriteTransaction, group: int, before: SessionRow, offset: int) -> None:
        """The row was installed when it had followed from this record already."""
        if offset not in before.offsets:
            self._supersede(txn, group, [offset])

    def _supersede(self, txn: WriteTransaction, group: int, offsets: list[int]) -> None:
        supersede(self._databases, txn, group, offsets)

    def _put(self, txn: WriteTransaction, group: int, before: SessionRow | None, row: SessionRow) -> None:
        key = session_key(group, row.session.client_id)
        due = due_us(row.session)
        if before is not None and (was := due_us(before.session)) not in (0, due):
            self._databases.session_due.delete(txn, _U64.pack(was) + key)
        self._databases.sessions.put(txn, key, pack_session_row(row))
        if due:
            self._databases.session_due.put(txn, _U64.pack(due) + key, b"")

    def _drop(self, txn: WriteTransaction, group: int, session: SessionSaved) -> None:
        key = session_key(group, session.client_id)
        self._databases.sessions.delete(txn, key)
        if due := due_us(session):
            self._databases.session_due.delete(txn, _U64.pack(due) + key)

    # reading

    def row(self, txn: AnyTransaction, group: int, client_id: str) -> SessionRow | None:
        """The row of a client id; a damaged one is as good as none: what comes replaces it, or has no effect."""
        found: SessionRow | None = self._databases.sessions.parsed(txn, session_key(group, client_id))
        return found

    def session(self, txn: AnyTransaction, group: int, client_id: str) -> SessionSaved | None:
        """The session of a client id."""
        row = self.row(txn, group, client_id)
        return None if row is None else row.session

    def mend_due(self, begin: Callable[[], WriteTransaction]) -> None:
        """Make damaged rows of `session_due` anew, from the sessions."""
        table = self._databases.session_due
        after: bytes | None = None
        while True:
            with begin() as txn:
                rows = self._databases.sessions.rows(txn, b"", after)
                for key, row in rows:
                    due = due_us(session_of(row))
                    if due and table.get(txn, _U64.pack(due) + key) is None:
                        table.put(txn, _U64.pack(due) + key, b"")
            if not rows:
                return
            after = rows[-1][0]

    def due(
        self, txn: AnyTransaction, now_us: int, limit: int, groups: Container[int] | None = None
    ) -> Iterator[tuple[int, SessionSaved]]:
        """Up to `limit` sessions to which something is to happen by `now_us`, longest due first; with their groups.
        `groups`: only of these (None: of all)."""
        due = self._databases.session_due
        first = due.rows(txn, b"", None, 1)
        if first and unpacked_head(_U64, first[0][0], "session_due")[0] > now_us:
            return  # as mostly, and asked for often
        after: bytes | None = None
        while rows := due.rows(txn, b"", after, limit):
            for key, _ in rows:
                if limit <= 0 or unpacked_head(_U64, key, "session_due")[0] > now_us:
                    return
                group = int.from_bytes(key[_U64.size : _U64.size + 2], "big")
                row = (
                    None
                    if groups is not None and group not in groups
                    else self._databases.sessions.get(txn, key[_U64.size :])
                )
                if row is not None:
                    limit -= 1
                    yield group, session_of(row)
            after = rows[-1][0]
            if limit <= 0:
                return


def session_key(group: int, client_id: str) -> bytes:
    """The key of a session's row."""
    return group_prefix(group) + name_key(client_id.encode())


def pack_session_row(row: SessionRow) -> bytes:
    """A row of the sessions table."""
    return _OFFSETS.pack(*row[:3]) + pack_record(row.session)


def parse_session_row(data: bytes) -> SessionRow:
    """The inverse of `pack_session_row`. Raises DamageError."""
    saved, placed, taken = unpacked_head(_OFFSETS, data, "sessions")
    try:
        record = unpack_record(data[_OFFSETS.size :])
    except PeerError as error:
        raise DamageError("sessions", -1, -1, str(error)) from None
    if not isinstance(record, SessionSaved):
        raise DamageError("sessions", -1, -1, f"a {type(record).__name__} where a SessionSaved was expected")
    return SessionRow(saved, placed, taken, record)


def session_of(data: bytes) -> SessionSaved:
    """The session in a row of the sessions table. Raises DamageError."""
    return parse_session_row(data).session
