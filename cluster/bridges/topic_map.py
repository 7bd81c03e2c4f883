"""From a topic here to the topic there: a prefix goes, another comes."""

from __future__ import annotations

from dataclasses import dataclass

from ..topics.names import TOPIC_BYTES_MAX, matches


@dataclass(frozen=True, slots=True)
class LocalFilter:
    """One side of a bridged topic: what is subscribed to on this side is `own` and the pattern, and `other` takes the
    place of `own` on the other side."""

    pattern: str
    own: str
    other: str

    @property
    def filter(self) -> str:
        """What is subscribed to on this side."""
        return self.own + self.pattern

    def mapped(self, topic: str) -> str | None:
        """A topic of this side as it is called on the other; None where nothing can be called so: it would be empty,
        too long, or below `$`, which is each broker's own, though the filter does not say so."""
        # "a/#" matches "a" too (section 4.7.1.2).
        name = self.other[:-1] if len(topic) < len(self.own) else self.other + topic[len(self.own) :]
        is_own = name.startswith("$") and not (self.other + self.pattern).startswith("$")
        return name if name and not is_own and len(name.encode()) <= TOPIC_BYTES_MAX else None


class TopicMap:
    """Several of them; each topic belongs to the first that matches. Topics are remembered, `topics_max` of them."""

    def __init__(self, sides: list[LocalFilter], topics_max: int = 10_000) -> None:
        self._sides = sides
        self._filters = [side.filter.encode() for side in sides]
        self._known: dict[bytes, str | None] = {}
        self._topics_max = topics_max

    def mapped(self, topic: bytes) -> str | None:
        """The topic's name on the other side; None where nothing matches, or it has none there."""
        if topic in self._known:
            return self._known[topic]
        if len(self._known) >= self._topics_max:
            self._known.clear()
        found = None
        for side, filter in zip(self._sides, self._filters, strict=True):
            if matches(filter, topic):
                found = side.mapped(topic.decode())
                break
        self._known[topic] = found
        return found


def overlap(one: str, other: str) -> bool:
    """Whether some topic matches both filters."""
    first, second = one.split("/"), other.split("/")
    if {first[0], second[0]} & {"+", "#"} and "$" in (first[0][:1], second[0][:1]):
        return False  # [MQTT-4.7.2-1]
    for left, right in zip(first, second, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    longer, shorter = sorted((first, second), key=len, reverse=True)
    return longer[len(shorter) :] in ([], ["#"])  # "a/#" matches "a" too (section 4.7.1.2)
