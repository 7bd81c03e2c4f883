"""The past at hand: pages that follow one another up to where live delivery stands, as one index of their topics.

Subscribers that return look up what they missed in all groups at once: each costs by what it gets, however many groups
there are. In each group the pages form a `Stretch`: fetched ones from `start` to `fetched_to`, then what came live
since, taken from the broker's cache when somebody looks (`sync`). A subscriber is covered by a stretch that begins no
later than it stands, leaves out nothing that it wants, and has been fetched up to where the cache will do for it.

The pages are the page cache's: what that lets go leaves the stretch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lexicast.cluster.topics.names import TopicIndex

from .block_cache import BlockCache
from .delivery import Wanted
from .pages import FROM_CACHE, Page, PageCache

if TYPE_CHECKING:
    from ..subscriber import Subscriber

# So many topics may have left before their names do: the index is made anew then.
TOPICS_GONE = 1_000
EVERY_VERSION = 1 << 63


class Stretch:
    """See the module's docstring. `live`: what comes after `end` comes live; `version`: it leaves out nothing of what
    the broker was subscribed to by then; `first_kept`: before that retention has taken something."""

    __slots__ = ("end", "fetched_to", "first_kept", "live", "pages", "start", "version")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.fetched_to = start
        self.live = False
        self.version = EVERY_VERSION
        self.first_kept = 0
        self.pages: deque[Page] = deque()


class AtHand:
    """See the module's docstring. `pages`: the cache that bounds it."""

    def __init__(self, cache: BlockCache, pages: PageCache) -> None:
        self._cache = cache
        self._pages = pages
        self._stretches: dict[int, Stretch] = {}
        # Topic -> its pages, in the order of the log.
        self._index: TopicIndex[deque[Page]] = TopicIndex()
        self._gone = 0
        # Where one stood who was covered, and up to which version whoever stands there is: each that returns brings
        # filters that are newer than those of the one before. What has changed here since takes nothing away.
        self._covered: tuple[dict[int, int], dict[int, int], int] | None = None
        # Groups of which retention had taken something.
        self._trimmed: set[int] = set()

    # -- pages come and go

    def add(self, page: Page) -> None:
        """A page was fetched. One that was made for some filters only serves nobody else."""
        if not (page.whole or page.filters is None):
            return
        self._covered = None
        stretch = self._stretches.get(page.group)
        if stretch is not None:
            while stretch.pages and stretch.pages[-1].start >= page.start:
                self._cut(stretch)
            within = stretch.pages and stretch.pages[-1].end > page.start
            if within or not stretch.start <= page.start <= stretch.fetched_to:
                stretch = None
        if stretch is None:
            self.drop(page.group)
            stretch = self._stretches[page.group] = Stretch(page.start)
        if page.end > page.start:
            self._append(stretch, page)
        stretch.fetched_to = page.end
        if not page.whole:
            stretch.version = min(stretch.version, page.version)
        if page.first_kept > page.start:
            stretch.first_kept = max(stretch.first_kept, page.first_kept)
            self._trimmed.add(page.group)
        stretch.live = False
        self._cache.moved.add(page.group)

    def gone(self, page: Page) -> None:
        """The page cache keeps it no longer."""
        stretch = self._stretches.get(page.group)
        if stretch is None or page not in stretch.pages:
            return
        self._covered = None
        while stretch.pages:
            first = stretch.pages.popleft()
            for topic in first.index:
                self._index[topic].popleft()
                self._gone += not self._index[topic]
            stretch.start = first.end
            if first is page:
                break
        if not stretch.pages or stretch.start > stretch.fetched_to:
            self.drop(page.group)
        self._sweep()

    def _append(self, stretch: Stretch, page: Page) -> None:
        index = self._index
        for topic in page.index:
            index.setdefault(topic, deque()).append(page)
        stretch.pages.append(page)
        stretch.end = page.end

    def _cut(self, stretch: Stretch) -> None:
        """The last page leaves."""
        page = stretch.pages.pop()
        for topic in page.index:
            self._index[topic].pop()
            self._gone += not self._index[topic]
        stretch.end = page.start
        stretch.fetched_to = min(stretch.fetched_to, page.start)

    def drop(self, group: int) -> None:
        """What is at hand of a group serves nobody any more."""
        stretch = self._stretches.pop(group, None)
        self._covered = None
        self._trimmed.discard(group)
        if stretch is not None:
            while stretch.pages:
                self._cut(stretch)
            self._sweep()

    def _sweep(self) -> None:
        """Topics that have left are forgotten, many at a time."""
        if self._gone > TOPICS_GONE and 2 * self._gone > len(self._index):
            kept: TopicIndex[deque[Page]] = TopicIndex()
            for topic in self._index:
                if pages := self._index[topic]:
                    kept.setdefault(topic, pages)
            self._index, self._gone = kept, 0

    # -- what has come live since

    def sync(self) -> None:
        """Take in what has come live since the last time; call it in the turn in which the rest is asked."""
        moved = self._cache.moved
        if not moved:
            return
        for group in moved:
            stretch = self._stretches.get(group)
            if stretch is not None:
                self._extend(stretch, group)
        moved.clear()

    def _extend(self, stretch: Stretch, group: int) -> None:
        blocks = self._cache.since(group, stretch.end)
        stretch.live = blocks is not None
        if not stretch.live:
            self._covered = None
        if not blocks:
            if stretch.live:  # nothing that concerns this broker lies up to there
                stretch.end = self._cache.end(group)
            return
        page = Page(group, stretch.end, self._cache.end(group), blocks, version=FROM_CACHE)
        self._pages.add(page)
        if self._stretches.get(group) is stretch:  # the page cache has not let it go for this one
            self._append(stretch, page)

    # -- looked up

    def stretch(self, group: int) -> Stretch | None:
        """What is at hand of a group, as of the last `sync`."""
        return self._stretches.get(group)

    def covers(self, subscriber: Subscriber, version: int) -> bool:
        """Whether nothing is missing that the subscriber may want, as of the last `sync`.

        `version`: by which all its filters were registered.
        """
        covered = self._covered
        if (
            covered is not None
            and version <= covered[2]
            and subscriber.lagging == covered[0]
            and subscriber.past == covered[1]
        ):
            return True
        if next(self._missing(subscriber, version), None) is not None:
            return False
        up_to = min([self._stretches[group].version for group in subscriber.lagging], default=EVERY_VERSION)
        self._covered = subscriber.lagging.copy(), subscriber.past.copy(), up_to
        return True

    def lacks(self, subscriber: Subscriber, version: int) -> list[int]:
        """The groups for which it is not covered."""
        return list(self._missing(subscriber, version))

    def _missing(self, subscriber: Subscriber, version: int) -> Iterator[int]:
        stretches, past = self._stretches, subscriber.past
        for group, offset in subscriber.lagging.items():
            stretch = stretches.get(group)
            if (
                stretch is None
                or offset < stretch.start
                or version > stretch.version
                or not stretch.live
                or offset > stretch.end
                or (group in past and stretch.fetched_to < past[group])
            ):
                yield group

    def discarded(self, subscriber: Subscriber) -> None:
        """Tell a subscriber what retention had taken of what it missed."""
        for group in self._trimmed:
            first = self._stretches[group].first_kept
            if subscriber.lagging.get(group, first) < first:
                subscriber.discarded(group, first)

    def topics(self, subscriber: Subscriber, at_most: int) -> Iterable[bytes] | None:
        """The topics that it wants something of, perhaps among others; None: there are too many to look at."""
        index, filters = self._index, subscriber.subscriptions
        if len(filters) <= min(len(index), at_most):
            if len(filters) == 1:
                return index.match(next(iter(filters)))
            return {topic: None for name in filters for topic in index.match(name)}
        return list(index) if len(index) <= at_most else None

    def wanted(self, subscriber: Subscriber, topics: Iterable[bytes]) -> dict[int, list[tuple[Page, Wanted]]]:
        """group -> the pages that hold something of these topics at or after where the subscriber stands, in order."""
        index, lagging = self._index, subscriber.lagging
        found: dict[int, dict[Page, Wanted]] = {}
        for topic in topics:
            pages = index[topic]
            if not pages:
                continue
            group = pages[0].group
            start = lagging.get(group)
            if start is None:
                continue
            for page in pages:
                if page.end > start:
                    found.setdefault(group, {}).setdefault(page, {})[topic] = None
        return {group: sorted(of_group.items(), key=_start) for group, of_group in found.items()}


def _start(item: tuple[Page, Wanted]) -> int:
    return item[0].start
