"""The reader of the tables: sessions, subscriptions, producers, marks, dictionaries, epochs, names of topics.

In short read transactions, on any thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from lexicast.cluster.records import DictionaryStored, SessionSaved, Subscribed

from .environment.guard import Guard
from .file.keys import group_prefix
from .file.table import Table
from .index.subscriptions import IndexedSubscription, IndexSubscriptions
from .tables.databases import Databases
from .tables.producers import ProducerState
from .tables.sessions import session_of
from .tables.state import Epoch, State, parse_dictionary_row, parse_subscription_row
from .tables.topics import find_topic


class TableReader:
    """See the module's docstring."""

    def __init__(self, guard: Guard, databases: Databases, state: State, beside: IndexSubscriptions) -> None:
        """`beside`: the subscriptions that stand in the index, beside the publications of their topics."""
        self._guard = guard
        self._databases = databases
        self._state = state
        self._sessions = state.sessions
        self._beside = beside

    def topics(self, group: int) -> Iterator[bytes]:
        """The names of the topics that stored records of `group` name."""
        return (name for _, name in self._rows(self._databases.names, group_prefix(group)))

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        """The session of a client id, in its home group."""
        with self._guard.reading() as txn:
            return self._sessions.session(txn, group, client_id)

    def sessions(self, group: int) -> Iterator[SessionSaved]:
        """All sessions whose home is `group`."""
        return (session_of(row) for _, row in self._rows(self._databases.sessions, group_prefix(group)))

    def due_sessions(
        self, now_us: int, limit: int, groups: Container[int] | None = None
    ) -> list[tuple[int, SessionSaved]]:
        """Up to `limit` sessions whose will is due, or whose time is over, by `now_us`; each with its group.

        `groups`: only of these (None: of all).
        """
        with self._guard.reading() as txn:
            return list(self._sessions.due(txn, now_us, limit, groups))

    def subscriptions(self, group: int) -> Iterator[tuple[Subscribed, int]]:
        """All back-end subscriptions of `group`, each with its offset, the cut."""
        return (
            parse_subscription_row(row) for _, row in self._rows(self._databases.subscriptions, group_prefix(group))
        )

    def subscription(self, group: int, broker: str, topic: str) -> Subscribed | None:
        """A broker's back-end subscription to exactly `topic`."""
        with self._guard.reading() as txn:
            return self._state.subscription(txn, group, broker, topic)

    def subscribers(self, topic: bytes) -> list[IndexedSubscription]:
        """The exact back-end subscriptions that stand beside the publications of `topic` in DualDB, by cut."""
        with self._guard.reading() as txn:
            topic_id = find_topic(self._databases, txn, topic)
            return [] if topic_id is None else list(self._beside.of(txn, topic_id))

    def producer(self, group: int, producer: bytes) -> ProducerState | None:
        """What `group` remembers of a producer: incarnation, last sequence, where its recent publications lie."""
        with self._guard.reading() as txn:
            return self._state.producer(txn, group, producer)

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> int | None:
        """The offset of a QoS 2 publication that its publisher has not released."""
        with self._guard.reading() as txn:
            return self._state.mark(txn, group, session_uid, packet_id)

    def generation(self, group: int, session_uid: bytes) -> int:
        """The newest generation of a session of which `group` has a QoS 2 publication; 0: none is known."""
        with self._guard.reading() as txn:
            return self._state.generation(txn, group, session_uid)

    def dictionary(self, group: int, dictionary: int) -> DictionaryStored | None:
        """A dictionary that records of `group` may refer to."""
        with self._guard.reading() as txn:
            return self._state.dictionary(txn, group, dictionary)

    def dictionaries(self, group: int) -> Iterator[DictionaryStored]:
        """All dictionaries of `group`."""
        return (parse_dictionary_row(row) for _, row in self._rows(self._databases.dictionaries, group_prefix(group)))

    def epochs(self, group: int) -> list[Epoch]:
        """The group's epoch starts, oldest first (the last 1,024)."""
        with self._guard.reading() as txn:
            return self._state.epochs(txn, group)

    def _rows(self, table: Table, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows under a prefix, a short transaction a thousand: changes meanwhile may be seen or not."""
        after: bytes | None = None
        while True:
            with self._guard.reading() as txn:
                rows = table.rows(txn, prefix, after)
            yield from rows
            if not rows:
                return
            after = rows[-1][0]
