"""What clients of this broker may do: the rules as they are now, and answers remembered.

Answers stand where something is remembered anyway, so they cost nothing a message: who may not read a topic is not in
its fan (`fanout`), has no grant of it (`granted_filters`); a publisher remembers the topic that it published to last.
New rules change `number`, and whoever remembers something drops it then: those that are told (`told`) at once, each
subscriber and publisher when it is asked next.

Who holds the cluster's key, on links, is asked nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from lexicast.cluster.errors import TopicError
from lexicast.cluster.security.acl_file import READ, WRITE, AclRule, parse_acl
from lexicast.cluster.security.audit import AuditTrail
from lexicast.cluster.security.authors import author_of, names_user, split_author
from lexicast.cluster.security.rules import HISTORY, AccessRules
from lexicast.cluster.topics.names import DICTIONARY_PREFIX, is_wildcard, unescape_family

log = logging.getLogger(__name__)

# Answers kept, each about 250 bytes; all go when there are more.
ANSWERS_MAX: Final = 100_000


class Rights:
    """See the module's docstring. `restricted`: whether there are rules at all; without them everybody may everything.
    `number` grows with each change; `version`: the rules' own, as the coordination server counts; `is_known`: whether
    they have come, before which nobody may anything where there are to be rules."""

    def __init__(self, time_s: Callable[[], float] = time.monotonic, has_rules: bool = False) -> None:
        """`has_rules`: there are to be rules."""
        self._time_s = time_s
        self._audit = AuditTrail()
        self.restricted = has_rules
        self.is_known = not has_rules
        self.number = 0
        self.version = 0
        self.refused: Counter[str] = Counter()
        self.told: list[Callable[[], None]] = []
        self._rules = AccessRules()
        self._answers: dict[tuple[str, str, bytes], int] = {}

    def update(self, acl_text: str | None, version: int) -> None:
        """Take the rules of an acl file (None: there are none), from now on. Raises ConfigError, and nothing changes
        then."""
        self.take(None if acl_text is None else parse_acl(acl_text), version)

    def take(self, rules: Collection[AclRule] | None, version: int) -> None:
        """`update` with what has been read elsewhere: a file of 5,000 rules takes 12 ms."""
        self._rules, self.restricted, self.version = AccessRules(rules or ()), rules is not None, version
        self.is_known = True
        self._answers.clear()
        self.number += 1
        for tell in self.told:
            tell()
        log.info("rules of version %d: %s", version, f"{len(self._rules)} rules" if self.restricted else "none")

    def client(self, user: str, client_id: str) -> ClientRights:
        """Those of a client. `user`: "" where nobody has logged in."""
        return ClientRights(self, user, client_id)

    def of(self, user: str, client_id: str, topic: bytes) -> int:
        """What a client may do with a topic: of READ, WRITE, HISTORY those that it may."""
        rules = self._rules
        # Without %c among the rules all of a user's clients have the same answers, but for ids that are no plain names.
        odd = rules.ask_client_ids or "/" in client_id or "+" in client_id or "#" in client_id
        key = (user, client_id if odd else "", topic)
        known = self._answers.get(key)
        if known is None:
            known = self._looked_up(user, client_id, topic)
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = known
        return known

    def _looked_up(self, user: str, client_id: str, topic: bytes) -> int:
        if not topic.startswith(DICTIONARY_PREFIX):
            return self._rules.rights(user, client_id, topic)
        # Dictionaries hold pieces of their family's messages.
        try:
            family = unescape_family(topic[len(DICTIONARY_PREFIX) :])
        except TopicError:
            return 0
        return READ | HISTORY if self._rules.covers(user, client_id, READ, family) else 0

    def meets(self, user: str, client_id: str, action: int, topic_filter: bytes) -> bool:
        """Whether a filter can bring a client anything; see `AccessRules.meets`."""
        if topic_filter.startswith(DICTIONARY_PREFIX):
            return is_wildcard(topic_filter) or self.of(user, client_id, topic_filter) & READ != 0
        return self._rules.meets(user, client_id, action, topic_filter)

    def covers(self, user: str, client_id: str, action: int, topic_filter: bytes) -> bool:
        """Whether a client may do something with all topics of a filter; see `AccessRules.covers`."""
        return self._rules.covers(user, client_id, action, topic_filter)

    def may_publish(self, user: str, client_id: str, topic: bytes) -> bool:
        """Whether a client may publish to a topic."""
        return not self.restricted or self.of(user, client_id, topic) & WRITE != 0

    def author_may_write(self, author: str | None, topic: bytes) -> bool:
        """Whether who published something that is retained still may. `author`: as `ClientRights.author` said it; what
        does not name a user is of somebody unknown, and stays."""
        if not self.restricted or author is None or not names_user(author):
            return True
        client_id, user = split_author(author)
        return self.of(user, client_id, topic) & WRITE != 0

    def refuse(self, what: str, user: str, client_id: str, name: bytes, count: int = 1) -> None:
        """Count what somebody was refused ("publish", "subscribe", "will"), and note it in the audit trail."""
        self.refused[what] += count
        topic = name.decode(errors="backslashreplace")
        self._audit.note(f"{what}_refused", self._time_s(), user=user, client=client_id, topic=topic)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "version": self.version,
            "restricted": self.restricted,
            "rules": len(self._rules),
            "refused": dict(self.refused),
        }


class ClientRights:
    """Those of one client, whose connection keeps this."""

    __slots__ = ("_number", "_rights", "_written", "client_id", "user")

    def __init__(self, rights: Rights, user: str, client_id: str) -> None:
        self._rights = rights
        self.user = user
        self.client_id = client_id
        # The topic that it may write, asked for last, by rules of this number.
        self._written = b""
        self._number = 0

    @property
    def number(self) -> int:
        """Grows with each change of the rules."""
        return self._rights.number

    @property
    def restricted(self) -> bool:
        """Whether there are rules at all."""
        return self._rights.restricted

    def may_write(self, topic: bytes) -> bool:
        """Whether it may publish to a topic; of the same one again and again."""
        rights = self._rights
        if not rights.restricted or (topic == self._written and self._number == rights.number):
            return True
        if not rights.of(self.user, self.client_id, topic) & WRITE:
            return False
        self._written, self._number = topic, rights.number
        return True

    def may_read(self, topic: bytes) -> bool:
        """Whether it may get what is published to a topic."""
        rights = self._rights
        return not rights.restricted or rights.of(self.user, self.client_id, topic) & READ != 0

    def may_read_past(self, topic: bytes) -> bool:
        """Whether it may get what was published before it asked."""
        rights = self._rights
        return not rights.restricted or rights.of(self.user, self.client_id, topic) & HISTORY != 0

    def may_subscribe(self, topic_filter: bytes, past: bool) -> bool:
        """Whether a subscription can bring it anything. `past`: what was published before is wanted."""
        rights, action = self._rights, HISTORY if past else READ
        return not rights.restricted or rights.meets(self.user, self.client_id, action, topic_filter)

    def may_have_dictionaries(self, family: bytes) -> bool:
        """Whether it may read all of a family, whose dictionaries hold pieces of all of it."""
        rights = self._rights
        return not rights.restricted or rights.covers(self.user, self.client_id, READ, family)

    def author(self) -> str:
        """What its retained publications say of their publisher: the client id, and its user where there are rules."""
        return author_of(self.client_id, self.user) if self._rights.restricted else self.client_id

    def refuse(self, what: str, name: bytes, count: int = 1) -> None:
        """See `Rights.refuse`."""
        self._rights.refuse(what, self.user, self.client_id, name, count)
