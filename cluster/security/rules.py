"""Who may do what, by the rules of an acl file, as Mosquitto 2.0 answers.

For a client of user U with client id C and a topic, in this order:

    1  U's own rules (of `topic` after `user U`; of those before the first `user` where nobody has logged in): one that
       denies it ends the question; else one that allows what is asked ends it
    2  where there are patterns, a name or client id with '+' or '#' in it ends it: it would be a wildcard
    3  patterns: one that denies, else one that allows; one with %u applies to nobody who has not logged in

What nothing allows is denied. No wildcard at a filter's first level matches a topic that begins with '$'.

Stricter than Mosquitto: a pattern that allows is no pattern for somebody in whose name, put in for %u or %c, a '/' is,
since client ids are whatever clients like: C = "bob/key" would be let into the topics of "bob".

Beside reading and writing there is the past: who may read a topic may read its past too, unless a `nohistory` rule,
one's own or a pattern, matches it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from .acl_file import DENY, NOHISTORY, READ, WRITE, AclRule, parse_acl
from .rule_tree import Names, RuleTree, Template, is_template

# A right, beside READ and WRITE; never in a file.
HISTORY: Final = 16
ACTIONS: Final = {"read": READ, "write": WRITE, "history": HISTORY}

# Trees of users, and patterns of names with a '/', that are kept made.
TREES_MAX: Final = 100_000
ODD_MAX: Final = 1_000

_NOBODY: Final = RuleTree()


class AccessRules:
    """See the module's docstring. `user` is "" everywhere for clients that have not logged in."""

    def __init__(self, rules: Iterable[AclRule] = ()) -> None:
        self._of_users: defaultdict[str, list[AclRule]] = defaultdict(list)
        self._patterns: list[AclRule] = []
        self._pattern_tree = RuleTree(fills=True)
        # Whether %c is in a pattern: else all clients of a user have the same rights, odd ids aside.
        self.ask_client_ids = False
        for rule in rules:
            if rule.is_pattern:
                self._patterns.append(rule)
                self._pattern_tree.add(rule.topic_filter, rule.says)
                self.ask_client_ids = self.ask_client_ids or b"%c" in rule.topic_filter
            else:
                self._of_users[rule.user].append(rule)
        self._trees: dict[str, RuleTree] = {}
        self._odd: dict[Names, RuleTree] = {}

    @classmethod
    def of_text(cls, text: str) -> AccessRules:
        """Those of a file. Raises ConfigError, which names the line."""
        return cls(parse_acl(text))

    def __len__(self) -> int:
        return len(self._patterns) + sum(map(len, self._of_users.values()))

    # -- asked

    def rights(self, user: str, client_id: str, topic: bytes) -> int:
        """What a client may do with a topic: of READ, WRITE and HISTORY those that it may."""
        levels = topic.split(b"/")
        said = self._own(user).matching(levels)
        if said & DENY:
            return 0
        granted = said & (READ | WRITE)
        if self._patterns:
            names = _names(user, client_id)
            of_patterns = self._filling(names).matching(levels, names)
            said |= of_patterns & NOHISTORY
            if not (of_patterns & DENY or _is_dangerous(names)):
                granted |= of_patterns & (READ | WRITE)
        return granted | HISTORY if granted & READ and not said & NOHISTORY else granted

    def may(self, user: str, client_id: str, action: int, topic: bytes) -> bool:
        """Whether a client may do something (READ, WRITE, HISTORY) with a topic."""
        return self.rights(user, client_id, topic) & action != 0

    def meets(self, user: str, client_id: str, action: int, topic_filter: bytes) -> bool:
        """Whether there can be a topic that a filter matches and a client may read (READ; HISTORY: the past of).

        False is certain; where single topics of a filter are denied one by one it may be True and there is none.
        """
        if b"+" not in topic_filter and not topic_filter.endswith(b"#"):
            return self.may(user, client_id, action, topic_filter)
        levels, own, names = topic_filter.split(b"/"), self._own(user), _names(user, client_id)
        if own.covers(levels, DENY):
            return False
        patterns = self._filling(names)
        if action == HISTORY and (own.covers(levels, NOHISTORY) or patterns.covers(levels, NOHISTORY, names)):
            return False
        if own.meets(levels, READ):
            return True
        if _is_dangerous(names) or patterns.covers(levels, DENY, names):
            return False
        return patterns.meets(levels, READ, names)

    def covers(self, user: str, client_id: str, action: int, topic_filter: bytes) -> bool:
        """Whether a client may do something (READ, WRITE) with all topics that a filter matches.

        True is certain; where several rules match it only together it may be False.
        """
        levels, own = topic_filter.split(b"/"), self._own(user)
        if own.meets(levels, DENY):
            return False
        if own.covers(levels, action):
            return True
        names = _names(user, client_id)
        patterns = self._filling(names)
        if _is_dangerous(names) or patterns.meets(levels, DENY, names):
            return False
        return patterns.covers(levels, action, names)

    # -- shown

    def users(self) -> list[str]:
        """Those who have rules of their own, "" among them where clients have that have not logged in."""
        return list(self._of_users)

    def of_user(self, user: str) -> Iterator[AclRule]:
        """The rules that apply to a user, in the order in which they are looked at."""
        yield from sorted(self._of_users.get(user, ()), key=_denials_first)
        for rule in sorted(self._patterns, key=_denials_first):
            if user or b"%u" not in rule.topic_filter:
                yield rule

    # -- trees

    def _own(self, user: str) -> RuleTree:
        tree = self._trees.get(user)
        if tree is None:
            rules = self._of_users.get(user)
            if rules is None:
                return _NOBODY
            if len(self._trees) >= TREES_MAX:
                self._trees.clear()
            tree = self._trees[user] = RuleTree()
            for rule in rules:
                tree.add(rule.topic_filter, rule.says)
        return tree

    def _filling(self, names: Names) -> RuleTree:
        """The patterns for these names: a tree for all, but for names with a '/', which fill several levels."""
        if b"/" not in names.client_id and (names.user is None or b"/" not in names.user):
            return self._pattern_tree
        tree = self._odd.get(names)
        if tree is None:
            if len(self._odd) >= ODD_MAX:
                self._odd.clear()
            tree = self._odd[names] = self._odd_tree(names)
        return tree

    def _odd_tree(self, names: Names) -> RuleTree:
        tree = RuleTree()
        for rule in self._patterns:
            text = rule.topic_filter
            inserts = (b"%c" in text and b"/" in names.client_id) or (b"%u" in text and b"/" in (names.user or b""))
            says = rule.says & ~(READ | WRITE) if inserts else rule.says
            filled = Template(text).filled(names) if is_template(text) else text
            if says and filled is not None:
                tree.add(filled, says)
        return tree


def _names(user: str, client_id: str) -> Names:
    return Names(user.encode() if user else None, client_id.encode())


def _is_dangerous(names: Names) -> bool:
    """Whether what is put in for %u or %c would be a wildcard."""
    both = names.client_id + (names.user or b"")
    return b"+" in both or b"#" in both


def _denials_first(rule: AclRule) -> bool:
    return rule.says != DENY
