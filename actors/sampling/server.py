"""The sampling broker: learns dictionaries from the stream and publishes them (DESIGN.md, "Sampling broker").

It is a Python client like any other, but takes a *sample*: of what is published, the broker sends it at most
`compression.sampling_records_per_s` messages, each family its fair share. Every family that the ring (`ring`) gives to
this sampling broker has a maintenance algorithm, which is fed and asked (`family`); what it wants is trained in a
thread, one family at a time within a budget of CPU (`budget`), and published, retained, on the family's `$sdc/` topic.

All sampling brokers look at the same stream, so all learn the same families from it, and dividing the families among
them needs no talk. Where they disagree for a while, a family is learned twice or not yet; its newest dictionary counts.

**What a successor goes on from**: the dictionary, retained on `$sdc/<family>`, and what the algorithm has learned, a
few hundred bytes retained on `$sampling/<family>` (`algorithm_states`). Samples of messages are not kept: they are
payloads, and a new sample is there in seconds.

**What others publish**, the jobs over the history above all, is followed while it runs: `announcements`.

**Who may read** what is learned: whoever may read all of a family, and nobody else, which brokers see to
(`DictionaryLinks.allows`). Where there are rules, nothing enters a family's dictionary that fewer than
`compression.publishers_min` publishers have sent (`compression.shared_text`), and the dictionary says so: then it may
go to whoever reads or publishes a part of the family. Where fewer publish at all, everything may enter, as without
rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.security.authors import publisher_of
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.accounting import TrafficCounters
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.families import Families
from lexicast.compression.maintenance import Due, Maintenance
from lexicast.compression.predict import Predict
from lexicast.compression.regression import PublishedModel
from lexicast.compression.training import fulfil
from lexicast.compression.wire import Recoder

from ..client.client import Client
from ..client.messages import Message
from .algorithm_states import SAVE_S, AlgorithmStates
from .announcements import Announcements
from .budget import CpuBudget
from .family import AnnouncedDictionary, SampledFamily
from .ring import Ring
from .siblings import begin_from, siblings_of

log = logging.getLogger(__name__)

T = TypeVar("T")

# One message in so many is compressed to know what the family saves: the others would only cost CPU.
ACCOUNTED: Final = 4
# Who has begun more than so large a part of the families at a time loses its own to new ones, not others'.
FOUNDER_SHARE: Final = 4

# (family, some of its topics) -> (publishers, subscribers) that its dictionaries go to
Audience = Callable[[bytes, tuple[bytes, ...]], Awaitable[tuple[int, int]]]


def default_maintenance() -> Maintenance:
    """The algorithm of each family: PREDICT, with nothing to configure."""
    return Predict()


class SamplingServer:
    """Runs over an open client until cancelled; the client's id is this sampling broker's name in the ring."""

    def __init__(
        self,
        client: Client,
        config: CompressionConfig,
        clock: Clock,
        maintenance: Callable[[], Maintenance] = default_maintenance,
        audience: Audience | None = None,
        siblings: bool = True,
        rules: bool = False,
    ) -> None:
        """`audience`: asks all brokers; None: the one that the client is linked to. `siblings`: whether new families
        may begin with what others have learned. `rules`: not everybody may read everything."""
        self._client = client
        self._config = config
        self._clock = clock
        self._make = maintenance
        self._audience = audience or self._ask_broker
        # A sibling may be another tenant's.
        self._siblings = siblings and not config.boundary_levels
        self._publishers_min = config.publishers_min if rules else 0
        self._families = Families(
            [name.encode() for name in config.families],
            opted_out=[name.encode() for name in config.optout],
            boundary_levels=config.boundary_levels,
        )
        self._ring = Ring([client.client_id])
        self._mine: dict[bytes, bool] = {}
        self._kept: OrderedDict[bytes, SampledFamily] = OrderedDict()
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._budget = CpuBudget(config.sampling_cpu_percent, clock.monotonic())
        self._recoder = Recoder()
        self._states = AlgorithmStates(client)
        self._announcements = Announcements(client, clock, self._announced, self._warm)
        self.counters = TrafficCounters(config.families_max)
        self.observed = 0
        self.published = 0
        self.taken_over = 0
        self.begun_from_siblings = 0

    # -- what is looked after

    @property
    def members(self) -> frozenset[str]:
        """The sampling brokers that share the families."""
        return self._ring.members

    def set_members(self, names: set[str]) -> None:
        """The sampling brokers that there are now, this one included; families change hands accordingly."""
        ring = Ring(names | {self._client.client_id})
        if ring.members == self._ring.members:
            return
        self._ring = ring
        self._mine.clear()
        for family in [family for family in self._kept if not self.looks_after(family)]:
            del self._kept[family]

    def looks_after(self, family: bytes) -> bool:
        """Whether the ring gives the family to this sampling broker."""
        mine = self._mine.get(family)
        if mine is None:
            if len(self._mine) > 10 * self._config.families_max:
                self._mine.clear()
            mine = self._mine[family] = self._ring.owner(family) == self._client.client_id
        return mine

    def maintenance_of(self, family: bytes) -> Maintenance | None:
        """The algorithm of a family that is looked after; None when it is not, or nothing of it was seen yet."""
        kept = self._kept.get(family)
        return None if kept is None else kept.maintenance

    def _give_up_one(self) -> None:
        """The family that was silent longest; where one publisher has begun more than its share, of its families."""
        founder, count = Counter([kept.founder for kept in self._kept.values()]).most_common(1)[0]
        crowds = count > self._config.families_max / FOUNDER_SHARE
        del self._kept[next(name for name, kept in self._kept.items() if not crowds or kept.founder == founder)]

    def _family(self, name: bytes, founder: str = "") -> SampledFamily:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = SampledFamily(self._make(), self._publishers_min, founder)
            self._take_up(name, kept)
            if len(self._kept) > self._config.families_max:
                self._give_up_one()
        self._kept.move_to_end(name)
        return kept

    def _take_up(self, name: bytes, kept: SampledFamily) -> None:
        """Go on from what a predecessor left."""
        announced = [dictionary for dictionary in self._client.dictionaries() if dictionary.family == name]
        if announced:
            kept.current = announced[0]
        if self._announcements.model is not None:
            kept.warm(self._announcements.model)
        if not self._states.restore(name, kept.maintenance, kept.current) and kept.current is not None:
            kept.maintenance.adopt(kept.current)

    # -- what others publish

    def _announced(self, dictionary: Dictionary, packed_bytes: int) -> None:
        """Somebody has announced a dictionary: this sampling broker itself, or another, or a job over the history."""
        kept = self._kept.get(dictionary.family)
        if kept is not None and kept.is_news(dictionary):
            kept.announced = AnnouncedDictionary(dictionary, packed_bytes)
            self._enqueue(dictionary.family, kept)

    def _warm(self, model: PublishedModel) -> None:
        for kept in self._kept.values():
            kept.warm(model)

    # -- running

    async def run(self) -> None:
        """Sample until cancelled."""
        await self._client.status()  # the broker has announced the dictionaries that there are when it answers
        states = await self._states.open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._states.follow(states))
            tasks.create_task(self._announcements.follow_dictionaries())
            tasks.create_task(self._announcements.follow_models())
            tasks.create_task(self._train())
            tasks.create_task(self._save())
            tasks.create_task(self._look())

    async def _look(self) -> None:
        subscription = self._client.subscribe("#", sample_records_per_s=self._config.sampling_records_per_s)
        async with subscription:
            while True:
                for message in await subscription.next_batch():
                    self.observe(message)

    def observe(self, message: Message) -> None:
        """One sampled message."""
        topic = message.topic.encode()
        name = self._families.family_of(topic)
        if name is None or not self.looks_after(name):
            return
        publisher = publisher_of(message.publisher or "")
        kept = self._family(name, publisher)
        self.observed += 1
        if self.observed % ACCOUNTED == 0:
            encoded = self._recoder.encode(message.payload, kept.current)
            self.counters.add(name, len(message.payload), len(encoded.data) + 1)
        kept.observe(topic, message.payload, self._clock.time_us(), publisher)
        if not kept.queued and (kept.begins or kept.maintenance.due() is not None):
            self._enqueue(name, kept)

    def _enqueue(self, name: bytes, kept: SampledFamily) -> None:
        if not kept.queued:
            kept.queued = True
            self._waiting.put_nowait(name)

    # -- training

    async def _train(self) -> None:
        """Families whose dictionary is due, one after the other."""
        while True:
            name = await self._waiting.get()
            await asyncio.sleep(self._budget.wait_s(self._clock.monotonic()))
            kept = self._kept.get(name)
            if kept is None or not kept.queued:
                continue
            try:
                await self._attend_to(name, kept)
            except LexicastError as error:
                log.warning("family %s: no new dictionary: %s", name.decode(), error)
            except Exception:
                # One family whose messages nobody thought of must not end the learning of all others.
                log.exception("family %s: no new dictionary", name.decode())
            finally:
                kept.queued = False
                if kept.announced is not None:
                    self._enqueue(name, kept)

    async def _attend_to(self, name: bytes, kept: SampledFamily) -> None:
        if kept.announced is not None:
            await self._take_over(name, kept)
            return
        if kept.begins:
            await self._begin(name, kept)
        await self._renew(name, kept)

    async def _begin(self, name: bytes, kept: SampledFamily) -> None:
        """A new family begins with what a sibling has learned, where that pays on its first messages."""
        samples, kept.first = tuple(kept.first or ()), None
        known = self._client.dictionaries() if self._siblings else ()
        siblings = siblings_of(name, known, self._config.boundary_levels)
        if not siblings:
            return
        kept.hold()
        try:
            now_us = self._clock.time_us()
            made = await self._in_thread(lambda: begin_from(name, samples, siblings, now_us))
            if made is None or len(made.content) > self._config.dictionary_bytes_max or kept.announced is not None:
                return
            await self._announce(name, kept, made)
            await self._in_thread(lambda: kept.maintenance.adopt(made))
            kept.current = made
            self.begun_from_siblings += 1
        finally:
            kept.let_go()
        await self._states.save(name, kept.maintenance, kept.current)

    async def _take_over(self, name: bytes, kept: SampledFamily) -> None:
        """Somebody else's dictionary is the family's now: the algorithm and the accounts go on from it."""
        announced, kept.announced = kept.announced, None
        assert announced is not None
        kept.hold()
        try:
            await self._in_thread(lambda: kept.maintenance.adopt(announced.dictionary))
            kept.current = announced.dictionary
        finally:
            kept.let_go()
        self.counters.add_dictionary(name, announced.packed_bytes)
        self.taken_over += 1
        await self._states.save(name, kept.maintenance, kept.current)

    async def _renew(self, name: bytes, kept: SampledFamily) -> None:
        # For people: each link gets a dictionary when it pays there, so the algorithm reckons with one publisher and
        # one subscriber, however many there are (thesis section 6.3).
        kept.audience = await self._audience(name, tuple(kept.topics))
        due = kept.maintenance.due()
        if due is None:
            return
        kept.hold()
        made: Dictionary | None = None
        try:
            made = await self._publish(name, kept, due)
            kept.current = made or kept.current
        finally:
            try:
                await self._in_thread(lambda: kept.maintenance.adopt(made))
            finally:
                kept.let_go()
        await self._states.save(name, kept.maintenance, kept.current)

    async def _publish(self, name: bytes, kept: SampledFamily, due: Due) -> Dictionary | None:
        """Train and announce what is due; None when nothing pays, or somebody else was faster."""
        most, now_us = self._config.dictionary_bytes_max, self._clock.time_us()
        if kept.current is not None:
            now_us = max(now_us, kept.current.created_us + 1)  # another machine's clock may be ahead; the newest counts
        shared = None if kept.sent is None else kept.sent.shared()
        due = due._replace(candidates=tuple([one for one in due.candidates if one.size <= most]), shared=shared)
        made = await self._in_thread(lambda: fulfil(due, family=name, now_us=now_us)) if due.candidates else None
        if made is None or len(made.content) > most or kept.announced is not None:
            return None
        await self._announce(name, kept, made)
        return made

    async def _announce(self, name: bytes, kept: SampledFamily, made: Dictionary) -> None:
        packed = made.pack()
        kept.announcing = made.id
        await self._client.publish(dictionary_topic(name).decode(), packed, qos=1, retain=True)
        self.counters.add_dictionary(name, len(packed))
        self.published += 1

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run it in a thread, its CPU charged to the budget."""

        def timed() -> T:
            began = time.thread_time()
            try:
                return work()
            finally:
                self._budget.charge(time.thread_time() - began, self._clock.monotonic())

        return await asyncio.to_thread(timed)

    async def _ask_broker(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        publishers, subscribers = await self._client.internals.request("audience", family, topics)
        return publishers, subscribers

    async def _save(self) -> None:
        """Now and then what the algorithms have learned between two dictionaries."""
        while True:
            await asyncio.sleep(SAVE_S)
            for name, kept in list(self._kept.items()):
                if not kept.queued:
                    with suppress(LexicastError):  # the next round saves it
                        await self._states.save(name, kept.maintenance, kept.current)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`: bytes saved for each family, of the messages looked at."""
        families = {}
        for name, traffic in self.counters.snapshot().items():
            kept = self._kept.get(name)
            current = kept.current if kept else None
            families[name.decode()] = {
                "messages": traffic.messages,
                "raw_bytes": traffic.raw_bytes,
                "sent_bytes": traffic.sent_bytes,
                "dictionary_bytes": traffic.dictionary_bytes,
                "reduction_percent": round(traffic.reduction_percent(), 2),
                "codec": current.codec if current else None,
                "dictionary": f"{current.id:016x}" if current else None,
                # whom its dictionaries may go to: plain MQTT clients are not among them
                "aware_publishers": kept.audience[0] if kept else None,
                "aware_subscribers": kept.audience[1] if kept else None,
            }
        return {
            "observed": self.observed,
            "dictionaries_published": self.published,
            "dictionaries_taken_over": self.taken_over,
            "families_begun_from_siblings": self.begun_from_siblings,
            "regression_of_us": self._announcements.model.created_us if self._announcements.model else None,
            "looked_after": len(self._kept),
            "waiting": self._waiting.qsize(),
            "members": sorted(self.members),
            "families": families,
        }
