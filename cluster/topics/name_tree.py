"""Topic names in a tree by level, so that a filter finds those it matches a bounded number of steps at a time.

A scan is resumed by the *path* of the last name visited, whatever has been added or removed meanwhile: children are
visited in an order of their own (by a hash of the level, then by the level), and those of a wide node lie in buckets by
that hash, of which only the ones at hand are put in order. Measured with 100,000 names, in bytes a name: 410 of the
form dev/N/state, 93 where the last level is the one that differs, 990 where two levels lie below it in each.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from .names import FILTER_LEVELS_MAX

BUCKETS: Final = 256
# Children beyond which a node has buckets.
FLAT_MAX: Final = 512
# Children looked at for one step.
LOOKS_A_STEP: Final = 32

# The levels of the last name visited; a None at the end: with all that lies below it.
Path: TypeAlias = tuple[bytes | None, ...]


def path_of(topic: bytes) -> tuple[bytes, ...]:
    """The levels of a name, as far down as filters go."""
    return tuple(topic.split(b"/", FILTER_LEVELS_MAX))


def _bucket(level: bytes) -> int:
    return crc32(level) & (BUCKETS - 1)


def _place(level: bytes) -> tuple[int, bytes]:
    return crc32(level) & (BUCKETS - 1), level


class _Node:
    """A level with children. A child without children is True: a name that ends there."""

    __slots__ = ("buckets", "children", "count", "here")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node | bool] = {}
        self.buckets: list[dict[bytes, _Node | bool]] | None = None
        self.count = 0
        self.here = False

    def of(self, level: bytes) -> dict[bytes, _Node | bool]:
        """The dict that `level` belongs into."""
        return self.children if self.buckets is None else self.buckets[_bucket(level)]

    def put(self, level: bytes, child: _Node | bool) -> None:
        """Add a child, or replace it."""
        place = self.of(level)
        self.count += level not in place
        place[level] = child
        if self.buckets is None and self.count > FLAT_MAX:
            self.buckets = [{} for _ in range(BUCKETS)]
            for known, node in self.children.items():
                self.buckets[_bucket(known)][known] = node
            self.children = {}

    def drop(self, level: bytes) -> None:
        """Remove a child."""
        self.count -= self.of(level).pop(level, None) is not None

    def parts(self, since: bytes | None) -> Iterator[dict[bytes, _Node | bool]]:
        """The children in parts that follow each other in order, from the one that holds `since` on."""
        if self.buckets is None:
            yield self.children
        else:
            yield from self.buckets[0 if since is None else _bucket(since) :]


class _OutOfStepsError(Exception):
    """A scan ends here for now, at this path."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


class TopicNames:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._root = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, topic: bytes) -> None:
        """Add a name, if it is not there."""
        node = self._root
        *inner, last = path_of(topic)
        for level in inner:
            child = node.of(level).get(level)
            if not isinstance(child, _Node):
                below = _Node()
                below.here = child is True
                node.put(level, below)
                child = below
            node = child
        leaf = node.of(last).get(last)
        if leaf is None:
            node.put(last, True)
            self._size += 1
        elif isinstance(leaf, _Node) and not leaf.here:
            leaf.here = True
            self._size += 1

    def discard(self, topic: bytes) -> None:
        """Remove a name, if it is there."""
        nodes, levels = [self._root], path_of(topic)
        for level in levels[:-1]:
            child = nodes[-1].of(level).get(level)
            if not isinstance(child, _Node):
                return
            nodes.append(child)
        leaf = nodes[-1].of(levels[-1]).get(levels[-1])
        if leaf is True:
            nodes[-1].drop(levels[-1])
        elif isinstance(leaf, _Node) and leaf.here:
            leaf.here = False
        else:
            return
        self._size -= 1
        for at in range(len(nodes) - 1, 0, -1):
            if nodes[at].count:
                break
            parent, level = nodes[at - 1], levels[at - 1]
            if nodes[at].here:
                parent.put(level, True)
                break
            parent.drop(level)

    def scan(self, filter: bytes, after: Path | None, steps: int) -> tuple[list[bytes], Path | None]:
        """Names that `filter` (with wildcards) matches, beyond `after` (None: from the start), in about `steps` steps.

        Returns them and where to go on; None at the end.
        """
        scan = _Scan(filter, steps)
        try:
            scan.walk(self._root, 0, (), after)
        except _OutOfStepsError as end:
            return scan.found, end.path
        return scan.found, None


class _Scan:
    """One call of `TopicNames.scan`."""

    def __init__(self, filter: bytes, steps: int) -> None:
        levels = filter.split(b"/")
        self._rest = levels[-1] == b"#"
        self._levels: list[bytes] = levels[:-1] if self._rest else levels
        self._steps = steps
        self.found: list[bytes] = []

    def walk(self, node: _Node, depth: int, path: tuple[bytes, ...], after: Path | None) -> None:
        """All below a node that was visited. `after`: where to go on in there, as a path from it."""
        wanted = self._levels[depth] if depth < len(self._levels) else b"+"
        if depth >= len(self._levels) and not self._rest:
            return
        first = after[0] if after else None
        if wanted != b"+":
            child = node.of(wanted).get(wanted)
            if child is not None:
                self._visit(child, wanted, depth, path, after[1:] if after and first == wanted else None)
            return
        for part in node.parts(first):
            chosen = self._chosen(part, depth)
            self._steps -= len(part) // LOOKS_A_STEP
            if first is not None:
                place = _place(first)
                chosen = [level for level in chosen if _place(level) >= place]
            chosen.sort(key=_place)
            for level in chosen:
                self._visit(part[level], level, depth, path, after[1:] if after and level == first else None)
            if self._steps <= 0 and part:
                # Nothing of this part is left: go on behind its last child.
                raise _OutOfStepsError((*path, max(part, key=_place), None))
            first = after = None

    def _chosen(self, part: dict[bytes, _Node | bool], depth: int) -> list[bytes]:
        """The children of a part that may hold something."""
        ahead = self._levels[depth + 1] if depth + 1 < len(self._levels) else None
        if ahead is not None and ahead != b"+":
            found = [
                level
                for level, child in part.items()
                if isinstance(child, _Node)
                and (ahead in child.children or (child.buckets and ahead in child.of(ahead)))
            ]
        elif ahead is not None:
            found = [k for k, child in part.items() if child is not True]
        else:
            found = list(part)
        return [k for k in found if k[:1] != b"$"] if depth == 0 else found  # [MQTT-4.7.2-1]

    def _visit(self, child: Any, level: bytes, depth: int, path: tuple[bytes, ...], after: Path | None) -> None:
        """A child, and all below it; `after` not None: it was visited."""
        if after == (None,):
            return
        here = (*path, level)
        if after is None:
            self._steps -= 1
            if (
                (child is True or child.here)
                and depth + 1 >= len(self._levels)
                and (self._rest or depth + 1 == len(self._levels))
            ):
                self.found.append(b"/".join(here))
            if self._steps <= 0:
                raise _OutOfStepsError(here)
        if child is not True:
            self.walk(child, depth + 1, here, after or None)
