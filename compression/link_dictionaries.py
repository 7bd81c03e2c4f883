"""Which dictionaries a link gets, and when: TAPD (thesis chapter 6), decided link by link. Pure.

A dictionary costs each link that gets it `packed` bytes, and nobody knows how much the link is going to carry (thesis
6.2.3). This is the ski-rental problem: who buys when what was rented has cost as much as buying pays at most twice what
foresight would have paid. So, for each link, publisher's or subscriber's:

    no dictionary of the family    payloads go without (DEFLATE, or against the link's own past: `link_history`). What
                                   was carried so is *unclaimed*. The link gets the family's newest dictionary when
                                       unclaimed * share >= threshold * packed
                                   `share`: the part of these bytes that it would have saved (`FamilySavings`). As many
                                   bytes as it took are claimed then: each byte earns one dictionary.
    an older one of the family     is *prolonged*: it goes on compressing, worse (degraded), until what was carried with
                                   it would have been shorter by threshold * packed with the newest, and the link has
                                   saved, all in all, what that costs. A link that has once paid stays paid.
    the newest                     nothing to decide

**What holds**, where the shares are right, whatever comes and whenever it ends (`tests/compression`):

- What a link has paid for first dictionaries is at most 1/threshold of what they would have saved on what it had
  carried. So its bytes exceed those without dictionaries by at most share/threshold of them: at the worst moment, just
  after one was sent. A newer one never takes a link below what it had without any.
- With threshold 1 a link of one family and dictionary costs at most twice the better of "never" and "at once".

**Thresholds differ from link to link** (`threshold_of`, from 1 to 2 by the link's name): in a fleet whose devices send
alike all links would dip in the same moment. Spread so, the fleet as a whole is never more than 2 - sqrt(3) = 27% of
the share below: where x times what the dictionary costs would have been saved (1 <= x <= 2), a part y = x - 1 of the
links has it, and has saved y^2 / 2 of that with it; (y - y^2 / 2) / x is most at y = sqrt(3) - 1.

Brokers hold the newest of every family and recode at the edge, so no link depends on what others hold.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

NONE: Final = 0
"""No dictionary, where an id is asked for."""

BYTES_STREAM: Final = 1
"""What a link uses that follows a topic stream of bytes (`streams`). No dictionary has this id."""

FAMILIES_A_LINK_MAX: Final = 256
"""A link's families beyond it are forgotten, the first ones first: they have to earn their dictionary again."""

SHARES_MAX: Final = 4_096
_MEASURED_FIRST: Final = 16
_MEASURED_THEN: Final = 32
_COUNTED_MAX: Final = 256
_SHARE_MESSAGES_MIN: Final = 4


def threshold_of(link: str) -> float:
    """A link's threshold, 1 to 2, the same for the same name."""
    return 1 + int.from_bytes(blake2b(link.encode(), digest_size=4).digest(), "big") / 2**32


class LinkAccount(NamedTuple):
    """What a link got (dictionaries), paid for them, and saved by them; bytes. `saved_bytes` is an estimate by the
    families' shares, against what would have been sent without any dictionary."""

    dictionaries: int = 0
    paid_bytes: int = 0
    saved_bytes: int = 0

    @property
    def gained_bytes(self) -> int:
        """What is left of what was saved; negative while a dictionary has not paid yet."""
        return self.saved_bytes - self.paid_bytes


class LinkTotals(NamedTuple):
    """Many links: how many, those that got dictionaries, their sums, and the worst of them by `gained_bytes`."""

    links: int = 0
    with_dictionary: int = 0
    dictionaries: int = 0
    paid_bytes: int = 0
    saved_bytes: int = 0
    worst_bytes: int = 0

    def plus(self, account: LinkAccount) -> LinkTotals:
        """One link more."""
        return LinkTotals(
            self.links + 1,
            self.with_dictionary + (account.dictionaries > 0),
            self.dictionaries + account.dictionaries,
            self.paid_bytes + account.paid_bytes,
            self.saved_bytes + account.saved_bytes,
            min(self.worst_bytes, account.gained_bytes),
        )


class _Held:
    """A family's dictionary on a link, and what was carried with it since a newer one came."""

    __slots__ = ("dictionary", "outdated_bytes")

    def __init__(self, dictionary: int) -> None:
        self.dictionary = dictionary
        self.outdated_bytes = 0


class LinkDictionaries:
    """One link: see the module's docstring. At most FAMILIES_A_LINK_MAX families.

    `unclaimed_bytes`: of payloads that were sent without a dictionary; `saved_bytes` by those that were sent with one.
    Whoever sends adds to both.
    """

    __slots__ = ("_held", "_threshold", "paid_bytes", "saved_bytes", "taken", "unclaimed_bytes")

    def __init__(self, threshold: float = 1.0) -> None:
        """Raises ValueError below 1."""
        if threshold < 1:
            raise ValueError(f"a threshold is at least 1, not {threshold}")
        self._threshold = threshold
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self.unclaimed_bytes = 0
        self.saved_bytes = 0
        self.paid_bytes = 0
        self.taken = 0

    def held(self, family: bytes) -> int:
        """The family's dictionary that the link uses; NONE."""
        held = self._held.get(family)
        return NONE if held is None else held.dictionary

    def carried_outdated(self, family: bytes, sent_bytes: int) -> None:
        """Payloads were sent with the family's dictionary although there is a newer one."""
        held = self._held.get(family)
        if held is not None:
            held.outdated_bytes += sent_bytes

    def is_due(
        self, family: bytes, dictionary: int, packed_bytes: int, share: float, of_unclaimed: bool = False
    ) -> bool:
        """Whether the link is to get `dictionary`, the family's newest. `share`: the part of what it sends now that
        this would save; not positive: none, or not known yet. `of_unclaimed`: what it sends now needs none, whatever
        it holds (`streams`)."""
        held = self._held.get(family)
        if share <= 0 or (held is not None and held.dictionary == dictionary):
            return False
        if held is None or of_unclaimed:
            return self.unclaimed_bytes * share >= self._threshold * packed_bytes
        pays = held.outdated_bytes * share >= self._threshold * packed_bytes
        return pays and self.saved_bytes - self.paid_bytes >= packed_bytes

    def take(self, family: bytes, dictionary: int, packed_bytes: int, share: float, of_unclaimed: bool = False) -> None:
        """It was sent to the link, which pays for it. `share` as for `is_due`; 0 where nothing is to be claimed."""
        if (of_unclaimed or self.held(family) == NONE) and share > 0:
            claimed = int(self._threshold * packed_bytes / share)
            self.unclaimed_bytes = max(0, self.unclaimed_bytes - claimed)
        self.taken += 1
        self.paid_bytes += packed_bytes
        self.found(family, dictionary)

    def found(self, family: bytes, dictionary: int) -> None:
        """The link holds the dictionary, and did not pay for it: it has had it from before."""
        self._held[family] = _Held(dictionary)
        self._held.move_to_end(family)
        if len(self._held) > FAMILIES_A_LINK_MAX:
            self._held.popitem(last=False)

    def account(self) -> LinkAccount:
        """What it got, paid and saved until now."""
        return LinkAccount(self.taken, self.paid_bytes, self.saved_bytes)


class _Measured:
    """Bytes of the same messages without the dictionary (or with an older one) and with it."""

    __slots__ = ("asked", "messages", "with_bytes", "without_bytes")

    def __init__(self) -> None:
        self.asked = 0
        self.messages = 0
        self.without_bytes = 0
        self.with_bytes = 0

    def add(self, messages: int, without_bytes: int, with_bytes: int) -> None:
        """What is old counts less and less."""
        while self.messages >= _COUNTED_MAX:
            self.messages //= 2
            self.without_bytes //= 2
            self.with_bytes //= 2
        self.messages += messages
        self.without_bytes += without_bytes
        self.with_bytes += with_bytes


class FamilySavings:
    """Which part of the bytes a dictionary saves, measured on messages that cross the links; at most SHARES_MAX pairs
    of (dictionary, the one before or NONE), the least recently used out first."""

    def __init__(self) -> None:
        self._measured: OrderedDict[tuple[int, int], _Measured] = OrderedDict()

    def wants(self, dictionary: int, before: int) -> bool:
        """Whether the next message is to be measured: of each pair the first few, then one in so many."""
        measured = self._of(dictionary, before)
        measured.asked += 1
        return measured.asked <= _MEASURED_FIRST or measured.asked % _MEASURED_THEN == 0

    def note(self, dictionary: int, before: int, messages: int, without_bytes: int, with_bytes: int) -> None:
        """So many messages took `without_bytes` with `before`, and would take `with_bytes` with `dictionary`."""
        self._of(dictionary, before).add(messages, without_bytes, with_bytes)

    def share(self, dictionary: int, before: int) -> float:
        """The part of the bytes sent with `before` that `dictionary` saves, negative where it loses; 0: not known."""
        measured = self._measured.get((dictionary, before))
        if measured is None or measured.messages < _SHARE_MESSAGES_MIN or not measured.without_bytes:
            return 0.0
        return 1 - measured.with_bytes / measured.without_bytes

    def saved_bytes(self, dictionary: int, sent_bytes: int) -> int:
        """What `sent_bytes` with a dictionary were spared, against sending without any."""
        share = min(self.share(dictionary, NONE) or self.share(dictionary, BYTES_STREAM), 0.99)
        return int(sent_bytes * share / (1 - share)) if share > 0 else 0

    def _of(self, dictionary: int, before: int) -> _Measured:
        key = dictionary, before
        measured = self._measured.get(key)
        if measured is None:
            measured = self._measured[key] = _Measured()
            if len(self._measured) > SHARES_MAX:
                self._measured.popitem(last=False)
        self._measured.move_to_end(key)
        return measured
