"""The filters of a subscriber, with their options: whether and how it gets a topic by all of them together."""

from __future__ import annotations

from collections.abc import Mapping

from mypy_extensions import mypyc_attr

from lexicast.cluster.topics.names import TopicTrie, is_wildcard, matches

from .encoding import Grant
from .security.rights import ClientRights

TOPICS_REMEMBERED = 1_024
# So many filters are looked at one by one; once there are more, those with wildcards lie in a trie, entered as they
# come: made for all of them when the first topic is asked for, it would be a long turn.
FILTERS_TRIED = 8


@mypyc_attr(allow_interpreted_subclasses=True)  # by traces, and by tests
class GrantedFilters:
    """See the module's docstring. A base of `Subscriber`, not a part: `grant` is asked for each run of the past."""

    __slots__ = ("_granted", "_rules", "_trie", "chooses", "rights", "subscriptions")

    def __init__(self, rights: ClientRights | None = None) -> None:
        """`rights`: what it may read; None: everything."""
        self.rights = rights
        # The number of the rules by which what is remembered was granted.
        self._rules = 0
        # Whether a condition is among them, or was, as long as one is left.
        self.chooses = False
        self.subscriptions: dict[bytes, Grant] = {}
        self._granted: dict[bytes, Grant | None] = {}
        self._trie: TopicTrie[bytes, Grant] | None = None

    def set_filters(self, wanted: Mapping[bytes, Grant]) -> None:
        """Subscribe, or replace the options of subscriptions."""
        self.subscriptions.update(wanted)
        self.chooses = self.chooses or any([grant.where is not None for grant in wanted.values()])
        self._granted.clear()
        if self._trie is None and len(self.subscriptions) > FILTERS_TRIED:
            self._trie, wanted = TopicTrie(), self.subscriptions
        if self._trie is not None:
            for topic_filter, grant in wanted.items():
                if is_wildcard(topic_filter):
                    self._trie.insert(topic_filter, topic_filter, grant)

    def drop_filter(self, topic_filter: bytes) -> bool:
        """Unsubscribe; False when it was not subscribed."""
        self._granted.clear()
        if self._trie is not None and is_wildcard(topic_filter):
            self._trie.remove(topic_filter, topic_filter)
        known = self.subscriptions.pop(topic_filter, None) is not None
        self.chooses = self.chooses and bool(self.subscriptions)
        return known

    def drop_filters(self) -> dict[bytes, Grant]:
        """Unsubscribe from everything; what it was."""
        gone, self.subscriptions = self.subscriptions, {}
        self._granted.clear()
        self._trie = None
        self.chooses = False
        return gone

    def grant(self, topic: bytes) -> Grant | None:
        """How this subscriber gets `topic`; None: not at all."""
        rights = self.rights
        if rights is not None and rights.number != self._rules:
            self._granted.clear()
            self._rules = rights.number
        try:
            return self._granted[topic]
        except KeyError:
            found = join_grants(self._grants(topic))
            if found is not None and rights is not None and not rights.may_read(topic):
                found = None
            if len(self._granted) >= TOPICS_REMEMBERED:
                self._granted.clear()
            self._granted[topic] = found
            return found

    def _grants(self, topic: bytes) -> list[Grant]:
        if self._trie is None:
            return [g for f, g in self.subscriptions.items() if matches(f, topic)]
        exact = self.subscriptions.get(topic)
        found = [grant for _, grant in self._trie.match(topic)]
        return found if exact is None else [exact, *found]


def join_grants(grants: list[Grant]) -> Grant | None:
    """Overlapping subscriptions as one delivery: highest QoS [MQTT-3.3.4-2], all identifiers [MQTT-3.3.4-3]."""
    if not grants:
        return None
    if len(grants) == 1:
        return grants[0]
    no_local = any([grant.no_local for grant in grants])
    chooses = any([grant.chooses for grant in grants])
    return Grant(
        max([grant.qos for grant in grants]),
        any([grant.retain_as_published for grant in grants]),
        no_local,
        tuple([identifier for grant in grants for identifier in grant.ids]),
        join_grants([grant for grant in grants if not grant.no_local]) if no_local else None,  # [MQTT-3.8.3-3]
        any_of=tuple([part for grant in grants for part in grant.any_of or (grant,)]) if chooses else (),
    )
