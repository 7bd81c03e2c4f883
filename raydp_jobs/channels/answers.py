"""What each subscription has been told, so that whoever answers next tells it everything else, once. Pure.

Theory of operation. A subscription is a topic below `$channel/` (REAPS, section II: identical subscriptions are fused
into one); of all its subscribers together one `Told` is kept, retained on `state_topic`:

    life, number    its answers are called LIFE.1, LIFE.2 and so on, a name for each message
    rows            digests of the rows of its last answer: what is not among them is new
    pending         the messages that were decided on last, up to `number`
    period          the beginning of the period that this answered

1. What is to be told is decided first: the new `Told`, with the messages in `pending`, is stored. Then the messages are
   published, as they are. So an answer that was decided on is neither lost nor made differently a second time.
2. When all subscriptions of a channel have been told, the channel's `Round` is stored, retained as well. Messages of
   rounds up to that one have been published.
3. Whoever takes over (`lease`) looks at what is `pending` of the round that was not finished: the last message of the
   topic says how much of it has been published; the rest is. Then it asks for those that had not been answered in that
   period.
4. What does not fit into one `Told` is new for the next one: `decided` gives one after the other. The period is over
   for a subscription with the last.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import msgpack

from .definitions import PREFIX

STATE_PREFIX: Final = "$channel-state/"
STATES_FILTER: Final = "$channel-state/#"
ROUNDS_FILTER: Final = "$channel-state/+"
ROWS_A_MESSAGE: Final = 500
MESSAGE_BYTES: Final = 256 * 1024
PENDING_BYTES: Final = 768 * 1024
"""With the digests of all rows that a channel may have, less than every cluster takes as one payload."""
ROW_BYTES_MAX: Final = 256 * 1024
DIGEST_BYTES: Final = 8

_VERSION: Final = 1
_LIFE_BYTES: Final = 4
NEVER: Final = -1.0


@dataclass(frozen=True, slots=True)
class Told:
    """See the module's docstring. `round`: the channel's, in which it was decided on."""

    life: str
    number: int = 0
    round: int = 0
    period: float = NEVER
    rows: frozenset[bytes] = frozenset()
    pending: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        """As it is stored."""
        digests = b"".join(sorted(self.rows))
        packed: bytes = msgpack.packb(
            (_VERSION, self.life, self.number, self.round, self.period, digests, self.pending)
        )
        return packed

    def unpublished(self, last: bytes | None) -> tuple[bytes, ...]:
        """What of `pending` still has to be published; `last`: the last message on the topic, if there is one."""
        published = 0
        if last is not None:
            life, _, number = _name_of(last).rpartition(".")
            published = int(number) if life == self.life and number.isdecimal() else 0
        left = min(self.number - published, len(self.pending))
        return self.pending[len(self.pending) - left :] if left > 0 else ()


@dataclass(frozen=True, slots=True)
class Round:
    """A channel's last round that was finished, `at` (an ISO time), by `runner`; `period` as in `Told`."""

    number: int = 0
    period: float = NEVER
    at: str = ""
    runner: str = ""
    subscriptions: int = 0
    published: int = 0

    def pack(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self)).encode()


def new_life() -> Told:
    """Of a subscription that has been told nothing."""
    return Told(secrets.token_hex(_LIFE_BYTES))


def unpack_told(packed: bytes) -> Told | None:
    """The inverse of `Told.pack`; None for anything else."""
    try:
        version, life, number, round, period, digests, pending = msgpack.unpackb(packed)
        if version != _VERSION or len(digests) % DIGEST_BYTES:
            return None
        rows = frozenset([digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)])
        return Told(str(life), int(number), int(round), float(period), rows, tuple(map(bytes, pending)))
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def unpack_round(packed: bytes) -> Round | None:
    """The inverse of `Round.pack`; None for anything else."""
    try:
        made = Round(**json.loads(packed))
        return replace(made, number=int(made.number), period=float(made.period))
    except (ValueError, TypeError):
        return None


def state_topic(topic: str) -> str:
    """Where the `Told` of a subscription is retained, or the `Round` of a channel's topic."""
    return STATE_PREFIX + topic.removeprefix(PREFIX)


def told_topic(topic: str) -> str:
    """The inverse of `state_topic`."""
    return PREFIX + topic.removeprefix(STATE_PREFIX)


def decided(before: Told, rows: Sequence[Mapping[str, Any]], round: int, period: float, time: str) -> Iterator[Told]:
    """The states that follow from an answer, each to be stored and its messages published before the next (rule 4).

    None where nothing is new and nothing has gone. A row that is longer than ROW_BYTES_MAX is left out, as if told.
    """
    texts = {digest_of(text): text for text in [json.dumps(row, sort_keys=True, default=str) for row in rows]}
    here = frozenset(texts)
    fresh = [digest for digest in texts if digest not in before.rows]
    if not fresh and here == before.rows:
        return
    told = before
    while True:
        messages, taken = _messages(told, fresh, texts, time)
        fresh = fresh[taken:]
        told = replace(
            told,
            number=told.number + len(messages),
            round=round,
            period=told.period if fresh else period,
            rows=here.difference(fresh),
            pending=tuple(messages),
        )
        yield told
        if not fresh:
            return


def digest_of(row: str) -> bytes:
    """What is remembered of a row."""
    return blake2b(row.encode(), digest_size=DIGEST_BYTES).digest()


def _messages(told: Told, fresh: Sequence[bytes], texts: Mapping[bytes, str], time: str) -> tuple[list[bytes], int]:
    """As many messages as one state may hold, and how many of the `fresh` rows are in them."""
    messages: list[bytes] = []
    taken = size = 0
    while taken < len(fresh) and size < PENDING_BYTES - MESSAGE_BYTES - ROW_BYTES_MAX:
        some: list[str] = []
        long = 0
        while taken < len(fresh) and len(some) < ROWS_A_MESSAGE and long < MESSAGE_BYTES:
            text = texts[fresh[taken]]
            taken += 1
            if len(text) <= ROW_BYTES_MAX:
                some.append(text)
                long += len(text)
        if some:
            head = json.dumps({"time": time, "answer": f"{told.life}.{told.number + len(messages) + 1}"})
            messages.append(f'{head[:-1]}, "rows": [{", ".join(some)}]}}'.encode())
            size += len(messages[-1])
    return messages, taken


def _name_of(message: bytes) -> str:
    try:
        return str(json.loads(message)["answer"])
    except (ValueError, KeyError, TypeError):
        return ""
