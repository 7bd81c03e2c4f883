"""The families of a history's topics, and the dictionaries that these have now: what both trainings begin with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import lexicast
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.errors import UnavailableError
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.families import Families, FamilyMap, crosses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPICS_MAX: Final = 500_000
"""Topics whose families are found; each is held in the driver's memory."""
GIVE_UP_S: Final = 30.0


async def current_dictionaries(connect: Mapping[str, Any]) -> dict[bytes, Dictionary]:
    """The newest dictionary of each family, as the cluster's brokers announce them."""
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        await bus.status()
        return {dictionary.family: dictionary for dictionary in bus.dictionaries()}


def topics_of(frame: DataFrame) -> list[str]:
    """The topics of a history. Raises UnavailableError: more than TOPICS_MAX would not fit in here."""
    topics = [row.topic for row in frame.select("topic").distinct().limit(TOPICS_MAX + 1).collect()]
    if len(topics) > TOPICS_MAX:
        raise UnavailableError(f"more than {TOPICS_MAX:,} topics: train a part of them, such as 'flights/#'")
    return topics


def families_of(topics: Sequence[str], config: CompressionConfig, held: Iterable[Dictionary]) -> dict[str, bytes]:
    """The family of each topic that has one: the announced one that matches it best, else as a sampler would say."""
    announced = FamilyMap()
    for dictionary in held:
        if not crosses(dictionary.family, config.boundary_levels):
            announced.add(dictionary)
    learned = Families(
        [name.encode() for name in config.families],
        opted_out=[name.encode() for name in config.optout],
        boundary_levels=config.boundary_levels,
    )
    names = sorted(topic.encode() for topic in topics)
    for name in names:
        learned.family_of(name)  # a level turns out to vary only after some of its values
    found: dict[str, bytes] = {}
    for name in names:
        family = learned.family_of(name)
        if family is not None:
            found[name.decode()] = announced.family_of(name) or family
    return found
