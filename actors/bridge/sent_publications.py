"""What a bridge has sent to the other broker and what has become of it. Pure.

The sender's half of MQTT's QoS 1 and 2 (4.3), over any number of connections:

    add()  ->  published  -- PUBACK -->  done
                   |
                   +------- PUBREC -->  released  -- PUBCOMP -->  done

At most `limit` are unacknowledged (the other side's Receive Maximum [MQTT-3.3.4-9], or the bridge's own). Where a
connection is lost all of it is sent again, in order [MQTT-4.4.0-1]; if the other side has lost the session, what it had
taken (PUBREC) is done, since it owns that [MQTT-4.3.3-10].

A packet id that is free is used again before a new one: so a bridge that begins anew, and does not know what it had
under way with QoS 2 before, can release all that there can be (`all_ids`), rather than publish under an id that the
other side takes for a repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from .dealt_positions import Place

PACKET_IDS: Final = 65_535


class Form:
    """How publications go there, but for their payload: mostly all of a topic alike. `properties`: encoded, with their
    length (empty where there are none to speak of); `is_plain`: they may be part of a batch; `is_usual`: others of the
    same form follow."""

    __slots__ = ("is_plain", "is_usual", "properties", "qos", "retain", "topic")

    def __init__(
        self, topic: bytes, qos: int, retain: bool, properties: bytes, is_plain: bool, is_usual: bool = True
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.is_plain = is_plain
        self.is_usual = is_usual


class Outbound(NamedTuple):
    """A publication on its way out. `place`: where it is from."""

    form: Form
    payload: bytes
    place: Place


# An Outbound of its fields, unlooked at: as `Outbound._make`, at a third of its price.
outbound_of: Callable[[tuple[Any, ...]], Outbound] = partial(tuple.__new__, Outbound)


# A publication under its packet id (0: of QoS 0).
Sent: TypeAlias = tuple[int, Outbound]


class SentPublications:
    """See the module's docstring."""

    def __init__(self, inflight_max: int) -> None:
        self._inflight_max = inflight_max
        self._limit = inflight_max
        self._published: dict[int, Outbound] = {}
        self._released: dict[int, Outbound] = {}
        self._free: list[int] = []
        self._unused = 1

    def __len__(self) -> int:
        return len(self._published) + len(self._released)

    @property
    def room(self) -> int:
        """How many more may be sent now."""
        return max(0, self._limit - len(self))

    def all_ids(self) -> range:
        """The packet ids that it ever uses."""
        return range(1, self._inflight_max + 1)

    def add(self, messages: Sequence[Outbound]) -> list[Sent]:
        """These go out, each of QoS 1 or 2 under a packet id. Raises ValueError where there is no room for all."""
        published, free, room = self._published, self._free, self.room
        found: list[Sent] = []
        for message in messages:
            if message[0].qos == 0:
                found.append((0, message))
                continue
            if room == 0:
                raise ValueError(f"{len(self)} are under way already")
            room -= 1
            if free:
                packet_id = free.pop()
            else:
                packet_id, self._unused = self._unused, self._unused + 1
            published[packet_id] = message
            found.append((packet_id, message))
        return found

    def acknowledged(self, packet_ids: Iterable[int]) -> list[Outbound]:
        """PUBACK (or a refusal): what is done. What nobody knows is passed over: it was of a session that is over."""
        return self._done(self._published, packet_ids)

    def taken(self, packet_ids: Iterable[int]) -> None:
        """PUBREC: they are to be released, whether they are known or not [MQTT-4.3.3-4]."""
        for packet_id in packet_ids:
            message = self._published.pop(packet_id, None)
            if message is not None:
                self._released[packet_id] = message

    def completed(self, packet_ids: Iterable[int]) -> list[Outbound]:
        """PUBCOMP: what is done."""
        return self._done(self._released, packet_ids)

    def _done(self, open_ones: dict[int, Outbound], packet_ids: Iterable[int]) -> list[Outbound]:
        free = self._free
        done: list[Outbound] = []
        for packet_id in packet_ids:
            message = open_ones.pop(packet_id, None)
            if message is not None:
                free.append(packet_id)
                done.append(message)
        return done

    def connected(self, receive_max: int, resumed: bool) -> list[Outbound]:
        """A new connection. `receive_max`: what the other side takes unacknowledged; `resumed`: it has kept the
        session. What is done by that."""
        self._limit = min(receive_max, self._inflight_max)
        if resumed:
            return []
        return self._done(self._released, [*self._released])

    def again(self) -> tuple[list[int], list[Sent]]:
        """What is to be sent again on a new connection: releases, and publications, in their order."""
        return [*self._released], [*self._published.items()]
