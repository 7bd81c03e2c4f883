"""A topic family as the sampling broker that looks after it knows it: its algorithm, and what waits for that."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import SAMPLE_BYTES_MAX, Maintenance
from lexicast.compression.regression import Observation, PublishedModel
from lexicast.compression.shared_text import Sent, SharedText

from .siblings import SAMPLES

TOPICS_KEPT: Final = 8
# Messages of a family that wait while its dictionary is trained: as many as the algorithms look at.
PENDING_MAX: Final = 500
# Messages of whose publishers is known who has sent what, where not everybody may read everything.
SENT_MAX: Final = 500
SENT_BYTES_MAX: Final = 1 << 20


@runtime_checkable
class Warmable(Protocol):
    """A maintenance algorithm that can start from what was learned of other families."""

    def warm(self, observations: Sequence[Observation]) -> None:
        """Start from these until it has learned enough of its own family."""
        ...


class AnnouncedDictionary(NamedTuple):
    """A dictionary that somebody else has announced, and its bytes as sent."""

    dictionary: Dictionary
    packed_bytes: int


class SentMessages:
    """The last messages of a family and who has sent them: SENT_MAX and SENT_BYTES_MAX at the most, of one publisher
    no more than its share, where there are others."""

    def __init__(self, publishers_min: int) -> None:
        self._publishers_min = publishers_min
        self._sent: deque[Sent] = deque()
        self._bytes = 0
        self._counts: Counter[str] = Counter()

    def add(self, publisher: str, message: bytes) -> bool:
        """Whether there was room for one more of this publisher: else nothing of it is to be learned from."""
        count = self._counts[publisher]
        if count * self._publishers_min >= SENT_MAX and len(self._counts) >= self._publishers_min:
            return False
        self._sent.append(Sent(publisher, message))
        self._bytes += len(message)
        self._counts[publisher] = count + 1
        while len(self._sent) > SENT_MAX or self._bytes > SENT_BYTES_MAX:
            gone = self._sent.popleft()
            self._bytes -= len(gone.message)
            self._counts[gone.publisher] -= 1
            if not self._counts[gone.publisher]:
                del self._counts[gone.publisher]
        return True

    def shared(self) -> SharedText | None:
        """What may be told of them; None where so few have sent any that nothing may."""
        shared = SharedText(tuple(self._sent), self._publishers_min)
        return shared if shared.enough else None


class SampledFamily:
    """One family as its sampling broker knows it."""

    __slots__ = (
        "announced",
        "announcing",
        "audience",
        "current",
        "first",
        "founder",
        "maintenance",
        "model",
        "pending",
        "queued",
        "sent",
        "topics",
    )

    def __init__(self, maintenance: Maintenance, publishers_min: int = 0, founder: str = "") -> None:
        """`publishers_min`: nothing that fewer have sent may be told to all who have to do with the family; 0: all who
        have may read all of it. `founder`: who has published the first of its messages."""
        self.maintenance = maintenance
        self.founder = founder
        self.sent = SentMessages(publishers_min) if publishers_min else None
        # Publishers and subscribers that may get its dictionaries, when one was made last.
        self.audience = (0, 0)
        self.current: Dictionary | None = None
        # The first messages of a family that has no dictionary yet, for its siblings' to be tried on; None: no more.
        self.first: list[bytes] | None = []
        self.announcing = 0  # the id of the one that is being published now
        self.announced: AnnouncedDictionary | None = None  # somebody else's, to be taken over
        self.model: PublishedModel | None = None  # one that came while a thread worked on the algorithm
        self.queued = False
        # While a thread works on the algorithm, what is observed waits here.
        self.pending: deque[tuple[bytes, int, bytes]] | None = None
        self.topics: OrderedDict[bytes, None] = OrderedDict()

    def observe(self, topic: bytes, message: bytes, time_us: int, publisher: str = "") -> None:
        """One message."""
        if self.sent is not None and not self.sent.add(publisher, message):
            return
        if topic not in self.topics:
            self.topics[topic] = None
            if len(self.topics) > TOPICS_KEPT:
                self.topics.popitem(last=False)
        if self.first is not None and len(self.first) < SAMPLES and len(message) <= SAMPLE_BYTES_MAX:
            self.first.append(message)
        if self.pending is None:
            self.maintenance.observe(message, time_us, topic)
        else:
            self.pending.append((message, time_us, topic))

    @property
    def begins(self) -> bool:
        """Whether it has no dictionary yet, and messages enough to try its siblings' on, which is done once."""
        return self.first is not None and len(self.first) >= SAMPLES and self.current is None

    def hold(self) -> None:
        """A thread is about to work on the algorithm."""
        self.pending = deque(maxlen=PENDING_MAX)

    def let_go(self) -> None:
        """The thread is done: the algorithm gets what has come meanwhile."""
        pending, self.pending = self.pending or (), None
        for message, time_us, topic in pending:
            self.maintenance.observe(message, time_us, topic)
        if self.model is not None:
            self.warm(self.model)

    def warm(self, model: PublishedModel) -> None:
        """Let the algorithm start from a regression over all families."""
        self.model = model if self.pending is not None else None
        if self.pending is None and isinstance(self.maintenance, Warmable):
            self.maintenance.warm(model.observations)

    def is_news(self, dictionary: Dictionary) -> bool:
        """Whether somebody else's dictionary is newer than what is known, as brokers and clients order them."""
        newest = self.announced.dictionary if self.announced else self.current
        known = newest is not None and (newest.created_us, newest.id) >= (dictionary.created_us, dictionary.id)
        return not known and dictionary.id != self.announcing
