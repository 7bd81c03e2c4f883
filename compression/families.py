"""Topic families: which topics share a dictionary.

MQTT topics are many and short-lived (`devices/123/telemetry`); a dictionary for each would never pay. A family is a
topic filter (`devices/+/telemetry`), and each topic belongs to one, by the first of these that applies:

1. topics that start with `$`, and topics matched by an opt-out filter: no family, never a dictionary (secrets);
2. the first configured filter that matches, in the order of the configuration;
3. the topic itself with every level that looks like an id, and every level learned to vary, replaced by `+`.

A level **looks like an id** when it is a number, has 8 or more hexadecimal digits, is a UUID, or mixes letters and
digits in 5 or more characters. Shorter mixtures (`co2`, `pm25`, `v1`) are mostly names of things; where they are many
they are learned. The first `boundary_levels` levels are as they are, whatever they look like: they say whose topics
these are (a tenant), and what one must not read of another is not in one dictionary. A topic for whose tenant there is
no room in the tree has no family. A level **is learned to vary** when more than `values_max` distinct values were seen
below the same parent: then it is `+` for good. The tree of values is bounded by `nodes_max`; where there is no room for
a new value it becomes `+`.

What is learned depends on the topics seen, so two brokers may disagree for a while. Nothing depends on their
agreement: a dictionary carries its family's filter, and publishers choose among the announced dictionaries
(`FamilyMap`), never by their own idea of families.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from lexicast.cluster.topics.names import check_filter, matches

from .codecs import FIELDS
from .dictionary import Dictionary

VALUES_MAX: Final = 20
NODES_MAX: Final = 50_000
LEVELS_MAX: Final = 32
LEVEL_BYTES_MAX: Final = 64
CACHE_MAX: Final = 10_000
FAMILIES_MAX: Final = 1_000

# `$sdc/alias` carries bindings, so the one family whose dictionaries would lie there has none.
_RESERVED: Final = b"alias"

_ID: Final = re.compile(
    rb"[+-]?\d+([.,:_-]\d+)*"  # numbers, dates, versions, addresses
    rb"|(0x)?[0-9a-f]{8,}|(0x)?[0-9A-F]{8,}"
    rb"|[{]?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}[}]?"
    rb"|(?=.*[0-9])(?=.*[A-Za-z]).{5,}"
)


def looks_like_id(level: bytes) -> bool:
    """Whether a topic level names one of many rather than a kind (see the module's docstring)."""
    return len(level) > LEVEL_BYTES_MAX or _ID.fullmatch(level) is not None


def crosses(family: bytes, boundary_levels: int) -> bool:
    """Whether a family's topics differ in their first levels: it would hold pieces of several tenants' payloads."""
    levels = family.split(b"/", boundary_levels)[:boundary_levels]
    return b"+" in levels or b"#" in levels


class Families:
    """Assigns topics to families and learns from those it sees. Deterministic: same topics, same order, same answer."""

    def __init__(
        self,
        filters: Iterable[bytes] = (),
        *,
        opted_out: Iterable[bytes] = (),
        values_max: int = VALUES_MAX,
        nodes_max: int = NODES_MAX,
        boundary_levels: int = 0,
    ) -> None:
        """Filters that cross the boundary are left out. Raises TopicError when a filter is not one."""
        self._boundary_levels = boundary_levels
        self._filters = tuple([filter for filter in filters if not crosses(filter, boundary_levels)])
        self._opted_out = tuple(opted_out)
        for filter in (*self._filters, *self._opted_out):
            check_filter(filter)
        self._values_max = values_max
        self._nodes_left = nodes_max
        self._root = _Node()
        self._cache: OrderedDict[bytes, bytes | None] = OrderedDict()

    def family_of(self, topic: bytes) -> bytes | None:
        """The family of a valid `topic`, None where it has none. Learns from the topic."""
        if topic in self._cache:
            self._cache.move_to_end(topic)
            return self._cache[topic]
        family = self._assign(topic)
        self._cache[topic] = family
        if len(self._cache) > CACHE_MAX:
            self._cache.popitem(last=False)
        return family

    def _assign(self, topic: bytes) -> bytes | None:
        if topic.startswith(b"$") or any(matches(filter, topic) for filter in self._opted_out):
            return None
        for filter in self._filters:
            if matches(filter, topic):
                return filter
        family = self._learned(topic.split(b"/"))
        return None if family == _RESERVED else family

    def _learned(self, levels: list[bytes]) -> bytes | None:
        node, family, boundary = self._root, list[bytes](), self._boundary_levels
        for at, level in enumerate(levels[:LEVELS_MAX]):
            if at < boundary:
                if not self._remember(node, level):
                    return None
                name = level
            else:
                name = b"+" if looks_like_id(level) else self._name(node, level)
            family.append(name)
            node = node.child(name)
        if len(levels) > LEVELS_MAX:
            family.append(b"#")
        return b"/".join(family)

    def _name(self, node: _Node, level: bytes) -> bytes:
        """`level` or `+`, remembering a new value below `node`."""
        if node.varies:
            return b"+"
        if level in node.children:
            return level
        known = len(node.children) - (b"+" in node.children)
        if known >= self._values_max:
            self._nodes_left += node.merge()
            self._cache.clear()  # topics answered with the literal level belong to the merged family from now on
            return b"+"
        return level if self._remember(node, level) else b"+"

    def _remember(self, node: _Node, level: bytes) -> bool:
        """Have a value below `node`; False where there is no room for it."""
        if level not in node.children:
            if self._nodes_left <= 0:
                return False
            self._nodes_left -= 1
            node.children[level] = _Node()
        return True


class _Node:
    """The values seen at one level below one parent."""

    __slots__ = ("children", "varies")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.varies = False

    def child(self, name: bytes) -> _Node:
        # "+" nodes are few: one below each node, and every node but the root was paid for or is one of them
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = _Node()
        return node

    def merge(self) -> int:
        """Let this level vary: forget its values. Returns how many nodes that frees."""
        self.varies = True
        freed = sum(child.size() for name, child in self.children.items() if name != b"+")
        self.children = {b"+": self.children.get(b"+") or _Node()}
        return freed

    def size(self) -> int:
        """Paid nodes in this subtree, itself included."""
        return 1 + sum(c.size() - (name == b"+") for name, c in self.children.items())


def _is_newer(one: Dictionary, other: Dictionary) -> bool:
    return (one.created_us, one.id) > (other.created_us, other.id)


def specificity(family: bytes) -> tuple[int, ...]:
    """Orders filters that match the same topic: literal before `+` before `#`, the leftmost level first."""
    return tuple(2 if level == b"#" else 1 if level == b"+" else 0 for level in family.split(b"/"))


class FamilyMap:
    """The newest announced dictionary of each family, found by topic: what publishers choose from.

    At most `families_max` families: beyond that, the family whose dictionary was announced longest ago is forgotten.
    The newest dictionary of bytes is kept beside a field model, for who knows none of these.
    """

    def __init__(self, families_max: int = FAMILIES_MAX, cache_max: int = CACHE_MAX) -> None:
        self._families_max = families_max
        self._cache_max = cache_max
        self._newest: OrderedDict[bytes, Dictionary] = OrderedDict()
        # Of families whose newest is a field model.
        self._of_bytes: dict[bytes, Dictionary] = {}
        self._cache: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def add(self, dictionary: Dictionary) -> bool:
        """Announce `dictionary`. False when a newer one of its family is known."""
        held = self._newest.get(dictionary.family)
        self._keep_of_bytes(held, dictionary)
        if held is not None and _is_newer(held, dictionary):
            return False
        if held is None:
            self._cache.clear()
        self._newest[dictionary.family] = dictionary
        self._newest.move_to_end(dictionary.family)
        if len(self._newest) > self._families_max:
            family, _ = self._newest.popitem(last=False)
            self._of_bytes.pop(family, None)
            self._cache.clear()
        return True

    def _keep_of_bytes(self, held: Dictionary | None, dictionary: Dictionary) -> None:
        """Of the two, and the one that is kept, the newest that is no field model, if the family's newest is one."""
        family = dictionary.family
        known = [each for each in (held, self._of_bytes.pop(family, None), dictionary) if each is not None]
        newest = max(known, key=lambda each: (each.created_us, each.id))
        of_bytes = [each for each in known if each.codec != FIELDS]
        if newest.codec == FIELDS and of_bytes:
            self._of_bytes[family] = max(of_bytes, key=lambda each: (each.created_us, each.id))

    def newest_of_bytes(self, family: bytes) -> Dictionary | None:
        """The family's newest dictionary that is no field model, as far as there is one."""
        newest = self._newest.get(family)
        return self._of_bytes.get(family) if newest is not None and newest.codec == FIELDS else newest

    def dictionary_for(self, topic: bytes, now_us: int) -> Dictionary | None:
        """The newest dictionary of the most specific family of `topic` that has one unexpired at `now_us`."""
        for family in self.families_of(topic):
            dictionary = self._newest[family]
            if now_us < dictionary.expires_us:
                return dictionary
        return None

    def newest(self, family: bytes) -> Dictionary | None:
        """The family's newest dictionary, whether or not it has expired."""
        return self._newest.get(family)

    def family_of(self, topic: bytes) -> bytes | None:
        """The most specific announced family of `topic`, whether or not its dictionary has expired."""
        families = self.families_of(topic)
        return families[0] if families else None

    def dictionaries(self) -> tuple[Dictionary, ...]:
        """The newest of every family, the latest announced last."""
        return tuple(self._newest.values())

    def families_of(self, topic: bytes) -> tuple[bytes, ...]:
        """The announced families that match `topic`, the most specific first."""
        found = self._cache.get(topic)
        if found is None:
            found = tuple(sorted((f for f in self._newest if matches(f, topic)), key=specificity))
            self._cache[topic] = found
            if len(self._cache) > self._cache_max:
                self._cache.popitem(last=False)
        return found
