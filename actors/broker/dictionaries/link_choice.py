"""Which dictionaries each link of a broker gets (TAPD): the accounts of links, kept where their payloads pass.

`compression.link_dictionaries` decides. Here stands what it is asked about: what the newest dictionaries would save, in
either direction, and the one question whether a link may have a dictionary at all (`DictionaryLinks.allows`).

A connection is one link for both directions (`ConnectionDictionaries`): its client publishes with any dictionary that
it was sent. What a subscriber is sent is made for all who have the same dictionaries (`broker.encoding`), so a
connection only says which form it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from lexicast.compression.codecs import FIELDS
from lexicast.compression.link_dictionaries import (
    BYTES_STREAM,
    NONE,
    FamilySavings,
    LinkDictionaries,
    LinkTotals,
    threshold_of,
)
from lexicast.compression.wire import Introductions

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary
    from lexicast.compression.wire import Recoder

    from ..encoding import EncodedBlock
    from ..security.rights import ClientRights
    from .keeper import DictionaryKeeper
    from .tagging import Instead, SentBytes

# A binding that the client or the broker sends once for each dictionary of a connection.
BINDING_BYTES: Final = 9


@mypyc_attr(allow_interpreted_subclasses=True)  # by tests
class DictionaryLinks:
    """All links of a broker. `delivered`, `published`: what dictionaries save to subscribers, from publishers."""

    def __init__(self, keeper: DictionaryKeeper, recoder: Recoder, delivered: FamilySavings) -> None:
        self.keeper = keeper
        self.recoder = recoder
        self.delivered = delivered
        self.published = FamilySavings()
        self._ended = LinkTotals()

    @staticmethod
    def allows(rights: ClientRights | None, family: bytes) -> bool:
        """Whether a client's link may have dictionaries of a family: they hold pieces of its messages, so only where it
        may read all of the family, also if it is there that it publishes. (Of one in which is only what several
        publishers have sent, `Dictionary.publishers`, this is not asked.)

        The one place that says so. `rights` None: of whoever holds the cluster's key, and may everything.
        """
        return rights is None or rights.may_have_dictionaries(family)

    def connection(
        self, client_id: str, send: Callable[[Dictionary], None], rights: ClientRights | None = None
    ) -> ConnectionDictionaries:
        """A client has connected; `send` sends it a dictionary that it lacks; `rights`: see `allows`."""
        return ConnectionDictionaries(self, client_id, send, rights)

    def ended(self, link: LinkDictionaries) -> None:
        """The client has gone; what its link got, paid and saved counts on."""
        self._ended = self._ended.plus(link.account())

    def totals(self, links: Iterable[LinkDictionaries]) -> LinkTotals:
        """Of the links that there are, and of those that have ended."""
        totals = self._ended
        for link in links:
            totals = totals.plus(link.account())
        return totals


@mypyc_attr(allow_interpreted_subclasses=True)  # by tests
class ConnectionDictionaries:
    """One connection's: what it has (`introductions`), what it earned (`link`), and which form of a block it takes.

    `reads_history`: what it publishes may be compressed against its own past; `reads_batches`: may come as batches.
    `reads_fields`: it knows field models, as Python clients that ask for their link's dictionaries do; who does not is
    never sent one, but the family's newest dictionary of bytes. `complete`: a set of
    dictionaries as the last block named it, of which none was lacking; blocks name the same again and again.
    """

    __slots__ = (
        "_links",
        "_rights",
        "_send",
        "complete",
        "introductions",
        "link",
        "reads_batches",
        "reads_fields",
        "reads_history",
    )

    def __init__(
        self,
        links: DictionaryLinks,
        client_id: str,
        send: Callable[[Dictionary], None],
        rights: ClientRights | None = None,
    ) -> None:
        self._links = links
        self._rights = rights
        self._send = send
        self.link = LinkDictionaries(threshold_of(client_id))
        self.introductions = Introductions()
        self.reads_history = False
        self.reads_batches = False
        self.reads_fields = True
        self.complete: tuple[int, ...] = ()

    # -- towards the client

    def form(self, first: EncodedBlock) -> EncodedBlock:
        """The form of a block that this link takes; to be sent, for it is accounted."""
        sent, other = first.sent, first.other
        if sent is None:
            return first
        taken = first
        if other is not None and sent.named != self.complete:
            lacking = self.lacking(sent.named)
            instead = self.instead(lacking, other.measure) if lacking else ()
            if instead:
                taken = other.form(instead)
                sent = taken.sent or sent
            else:
                self.complete = sent.named
        self.account(sent)
        return taken

    def lacking(self, named: Iterable[int]) -> list[int]:
        """Those that the client does not have."""
        knows = self.introductions.knows
        return [id for id in named if not knows(id)]

    def instead(self, lacking: Iterable[int], measure: Callable[[Instead], int]) -> Instead:
        """What is used in the place of dictionaries that it lacks, once those that are due have been sent. `measure`
        makes a form, from which follows what dictionaries save; it says how many bytes of it need none. They count: who
        would carry a whole batch without a dictionary gets it before."""
        dictionaries = [found for id in lacking if (found := self._links.recoder.get(id)) is not None]
        instead = tuple([(each.id, held) for each in dictionaries if (held := self._held(each)) != each.id])
        about_to_be = measure(instead) if instead else 0
        self.link.unclaimed_bytes += about_to_be
        used = tuple([(each.id, used) for each in dictionaries if (used := self._used(each)) != each.id])
        self.link.unclaimed_bytes = max(0, self.link.unclaimed_bytes - about_to_be)
        return used

    def _held(self, dictionary: Dictionary) -> int:
        return self.link.held(dictionary.family)

    def gets(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> bool:
        """Whether it has this dictionary, which a topic stream begins with, or gets it now. `instead_of_bytes`: it
        follows a stream that needs none."""
        if self.introductions.knows(dictionary.id):
            return True
        return self._used(dictionary, instead_of_bytes) == dictionary.id

    def _used(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> int:
        """What its family's payloads are compressed with towards this link: perhaps a dictionary that it gets now."""
        links, family = self._links, dictionary.family
        families = links.keeper.families
        newest = (families.newest(family) or dictionary) if self.reads_fields else families.newest_of_bytes(family)
        held = self.link.held(family)
        if newest is not None and held != newest.id:
            before = BYTES_STREAM if instead_of_bytes else held
            self._offer(newest, links.delivered.share(newest.id, before), instead_of_bytes)
        return self.link.held(family)

    def account(self, sent: SentBytes) -> None:
        """It was sent."""
        _, plain_bytes, saved_bytes, outdated = sent
        link = self.link
        if plain_bytes:
            link.unclaimed_bytes += plain_bytes
        if saved_bytes:
            link.saved_bytes += saved_bytes
        for family, size in outdated:
            link.carried_outdated(family, size)

    # -- from the client

    def published(
        self,
        topic: bytes,
        used: int,
        payloads: Sequence[bytes],
        sizes: int,
        count: int,
        raw: Callable[[bytes], bytes],
    ) -> None:
        """`count` payloads of a topic have come, `payloads` being some of them: `sizes` bytes on the link with the
        dictionary `used` (NONE: without one). `raw` decompresses one. The client may be sent a dictionary."""
        links, link = self._links, self.link
        if used != NONE:
            link.saved_bytes += links.published.saved_bytes(used, sizes)
            self.named(used)
        newest = links.keeper.newest(topic) if self.reads_fields else links.keeper.newest_of_bytes(topic)
        if newest is None:
            link.unclaimed_bytes += sizes if used == NONE else 0
            return
        held = link.held(newest.family)
        if newest.id in (used, held) or (used == NONE and held != NONE):
            return
        if held == NONE:
            link.unclaimed_bytes += sizes
        else:
            link.carried_outdated(newest.family, sizes)
        if links.published.wants(newest.id, used):
            with_newest = len(links.recoder.encode(raw(payloads[0]), newest).data)
            links.published.note(newest.id, used, 1, sizes // count, 1 + with_newest)
        self._offer(newest, links.published.share(newest.id, used))

    def fetched(self, dictionary: Dictionary) -> None:
        """The client has asked for a dictionary that it needs, and is sent it."""
        if self.introductions.needs_dictionary(dictionary.id):
            self.link.take(dictionary.family, dictionary.id, len(dictionary.pack()), 0.0)

    def named(self, id: int) -> None:
        """The client uses a dictionary: it has it, from an earlier connection perhaps."""
        if self.introductions.needs_dictionary(id):
            dictionary = self._links.recoder.get(id)
            if dictionary is not None:
                self.link.found(dictionary.family, id)

    def _offer(self, newest: Dictionary, share: float, of_unclaimed: bool = False) -> None:
        """Send a family's newest dictionary if that is due."""
        link, links = self.link, self._links
        if (newest.codec == FIELDS and not self.reads_fields) or links.keeper.crosses(newest.family):
            return
        cost = len(newest.pack()) + BINDING_BYTES
        if self.introductions.knows(newest.id):
            link.found(newest.family, newest.id)
        elif link.is_due(newest.family, newest.id, cost, share, of_unclaimed) and (
            newest.publishers > 1 or links.allows(self._rights, newest.family)
        ):
            link.take(newest.family, newest.id, cost, share, of_unclaimed)
            self._send(newest)
