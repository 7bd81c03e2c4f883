"""The topics that a filter matches, out of the table of ids, in the order of their names, without looking at all of it.

A name that does not match says where the next one may be that does: `a/+/c` is asked for beyond `a/x/d` from `a/x0` on
('0' follows '/'). So a filter costs by the topics it matches and the levels that its '+' stand for. Names that are too
long for a key lie behind the others, by digest, and are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lexicast.cluster.topics.names import is_wildcard, matches

from ..file.keys import key_name, name_key
from ..file.sealing import DamageError
from ..file.table import AnyTransaction
from .databases import Databases
from .topics import find_topic, topic_id_of

# What follows the separator of levels.
_BEYOND_LEVEL: Final = b"0"
# Names that begin with '$' are not matched by a leading wildcard [MQTT-4.7.2-1].
_HIDDEN: Final = b"$"
_BEYOND_HIDDEN: Final = b"%"
_LONG: Final = b"\1"

Note = Callable[[DamageError], None]


class FoundTopic(NamedTuple):
    """A topic that a filter matches, and its id."""

    name: bytes
    topic_id: int

    @property
    def key(self) -> bytes:
        """Its place among the topics: `matching_topics` goes on behind it."""
        return name_key(self.name)


def matching_topics(
    databases: Databases,
    txn: AnyTransaction,
    topic_filter: bytes,
    after: bytes | None,
    steps: int,
    note: Note | None = None,
) -> tuple[list[FoundTopic], bytes | None]:
    """Topics that a filter matches, beyond the place `after` (None: from the start), in about `steps` looks at names.

    Returns them and where to go on; None at the end. Where a row cannot be believed the table cannot tell: raises
    DamageError, or with `note` leaves its topic out and notes that.
    """
    if not is_wildcard(topic_filter):
        done = after is not None and name_key(topic_filter) <= after
        return [] if done else _exact(databases, txn, topic_filter, note), None
    levels = topic_filter.split(b"/")
    rest = levels[-1] == b"#"
    if rest:
        levels.pop()
    found: list[FoundTopic] = []
    with txn.cursor(databases.ids.database) as cursor:
        there = cursor.set_range(b"\0" + _fixed(levels) if after is None else after + b"\0")
        for _ in range(steps):
            key = bytes(cursor.key()) if there else b""
            if not key or key > _LONG + b"\xff" * 64:
                return found, None
            name = key_name(key)
            target = _target(name, levels, rest) if name is not None else None
            if name is None or target is None:
                found += _found(databases, txn, key, topic_filter, note)
                beyond = None if name is None else _beyond(name, levels, rest)
                there = cursor.next() if beyond is None else cursor.set_range(b"\0" + beyond)
            elif target == name:
                there = cursor.next()
            else:
                there = cursor.set_range(b"\0" + target if target else _LONG)
            after = key
    return found, after


def _fixed(levels: list[bytes]) -> bytes:
    """What every name that matches begins with."""
    wild = next((at for at, level in enumerate(levels) if level == b"+"), len(levels))
    return b"/".join(levels[:wild])


def _target(name: bytes, levels: list[bytes], rest: bool) -> bytes | None:
    """None: the name matches. Else the least name beyond it that may; the name itself: whichever follows; b"": none."""
    if name.startswith(_HIDDEN) and levels[:1] in ([], [b"+"]):
        return _BEYOND_HIDDEN
    own = name.split(b"/")
    for at, wanted in enumerate(levels):
        if at >= len(own):
            return name
        if wanted not in (b"+", own[at]):
            before = b"".join([level + b"/" for level in own[:at]])
            # Names such as "a-b" lie between "a" and "a/b".
            for least in (before + wanted, before + wanted + b"/"):
                if name < least:
                    return least
            return before[:-1] + _BEYOND_LEVEL if before else b""
    if rest or len(own) == len(levels):
        return None
    return b"/".join(own[: len(levels)]) + _BEYOND_LEVEL


def _beyond(name: bytes, levels: list[bytes], rest: bool) -> bytes | None:
    """Where the next name may be that matches, after one that does; None: anywhere."""
    if rest or levels[-1] == b"+":
        return None
    last_wild = len(levels) - levels[::-1].index(b"+")
    return b"/".join(name.split(b"/")[:last_wild]) + _BEYOND_LEVEL


def _exact(databases: Databases, txn: AnyTransaction, topic: bytes, note: Note | None) -> list[FoundTopic]:
    """The one topic of that name, where there is one."""
    try:
        topic_id = find_topic(databases, txn, topic)
    except DamageError as error:
        return _left_out(error, note)
    return [] if topic_id is None else [FoundTopic(topic, topic_id)]


def _left_out(error: DamageError, note: Note | None) -> list[FoundTopic]:
    if note is None:
        raise error
    note(error)
    return []


def _found(
    databases: Databases, txn: AnyTransaction, key: bytes, topic_filter: bytes, note: Note | None
) -> list[FoundTopic]:
    """The topic of a row, where it matches."""
    try:
        topic = _topic_of(databases, txn, key)
    except DamageError as error:
        return _left_out(error, note)
    return [topic] if matches(topic_filter, topic.name) else []


def _topic_of(databases: Databases, txn: AnyTransaction, key: bytes) -> FoundTopic:
    row = databases.ids.get(txn, key)
    if row is None:
        raise DamageError("ids", -1, -1, "a topic's id cannot be read")
    topic_id = topic_id_of(row, "ids")
    name = key_name(key)
    if name is None:
        name = databases.names.get(txn, row)
        if name is None or name_key(name) != key:
            raise DamageError("names", -1, -1, "a long topic's name cannot be read")
    return FoundTopic(name, topic_id)
