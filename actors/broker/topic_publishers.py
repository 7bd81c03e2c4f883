"""Whose messages a topic stream holds: where there are users, it holds those of one client alone. Pure.

A stream compresses each message against those before it, so how long a frame is says what it has in common with them.
Who may publish on a topic, and sees the lengths of what goes to another's subscriber, finds out byte by byte what it
may not read, as CRIME did with cookies (Rizzo and Duong 2012). So a topic leaves the streams with the first message
of a second publisher, before that is compressed against anything.

Where nobody logs in everybody may read everything, and topics of many publishers are streamed as any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

TOPICS_MAX: Final = 10_000


class TopicPublishers:
    """See the module's docstring. At most `topics_max` topics, the one that was longest silent out first."""

    def __init__(self, forget: Callable[[bytes], None], topics_max: int = TOPICS_MAX) -> None:
        """`forget`: a topic's stream is to be ended, with the past that it has."""
        self._forget = forget
        self._topics_max = topics_max
        # Who publishes; None: more than one.
        self._publishers: OrderedDict[bytes, str | None] = OrderedDict()

    def one(self, topic: bytes, publishers: Iterable[str | None]) -> bool:
        """Whether all that has come on a topic, and what comes now, is one publisher's. None: unknown whose."""
        now = set(publishers)
        first = next(iter(now)) if len(now) == 1 else None
        known = self._publishers.pop(topic, first)
        publisher = self._publishers[topic] = known if known == first else None
        if publisher is None:
            self._forget(topic)
        if len(self._publishers) > self._topics_max:
            self._forget(self._publishers.popitem(last=False)[0])  # it begins anew, with nothing of before
        return publisher is not None
