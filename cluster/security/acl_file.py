"""Mosquitto's acl files, line by line (mosquitto.conf(5), `acl_file`), and one word of our own.

    # a comment, on a line of its own
    topic read public/#
    user ada
    topic readwrite plant/+/state
    topic nohistory plant/secret
    pattern write devices/%u/#

Rules before the first `user` are for clients that have not logged in. `nohistory`, ours: it may be read, but not its
past. Patterns are for all users: %u is the user's name, %c the client id. A file with a line that is none of these is
refused as a whole. One without rules allows nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import ConfigError, TopicError
from ..topics.names import FILTER_LEVELS_MAX, check_filter_form

# What a rule says of the topics that it matches, as bits.
READ: Final = 1
WRITE: Final = 2
DENY: Final = 4
NOHISTORY: Final = 8
WORDS: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY, "nohistory": NOHISTORY}

# Of a file: 64 bytes a rule make 130,000. It is read and kept by every broker.
ACL_BYTES_MAX: Final = 8 * 1024 * 1024

_BLANKS: Final = " \t\r\v\f"
_KINDS: Final = ("topic", "pattern")


class AclRule(NamedTuple):
    """One line. `user`: "" of clients that have not logged in, and of patterns, which are for all."""

    user: str
    is_pattern: bool
    says: int
    topic_filter: bytes
    line: int

    @property
    def text(self) -> str:
        """The line as it would be written."""
        word = next(word for word, says in WORDS.items() if says == self.says)
        return f"{'pattern' if self.is_pattern else 'topic'} {word} {self.topic_filter.decode()}"


def parse_acl(text: str) -> list[AclRule]:
    """The rules of a file, in its order. Raises ConfigError, which names the line."""
    if len(text) > ACL_BYTES_MAX:
        raise ConfigError(f"the rules have {len(text)} characters: at most {ACL_BYTES_MAX} are read")
    rules: list[AclRule] = []
    user = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip(_BLANKS)
        if not line or line[0] == "#":
            continue
        word, _, rest = line.lstrip(" ").partition(" ")
        if word in _KINDS:
            rules.append(_rule(user, word == "pattern", rest, number))
        elif word == "user":
            user = rest.strip(_BLANKS)
            if not user:
                raise ConfigError(f"line {number}: 'user' lacks a name")
        else:
            raise ConfigError(f"line {number}: {word[:40]!r} begins no rule: write 'user', 'topic' or 'pattern'")
    return rules


def _rule(user: str, is_pattern: bool, rest: str, line: int) -> AclRule:
    word, _, name = rest.lstrip(" ").partition(" ")
    name = name.strip(_BLANKS)
    if not word:
        raise ConfigError(f"line {line}: the rule names no topic")
    if not name:  # one word only: that is the topic, whatever it is
        word, name = "readwrite", word
    says = WORDS.get(word)
    if says is None:
        raise ConfigError(f"line {line}: {word[:40]!r} is none of {', '.join(WORDS)}")
    topic_filter = name.encode(errors="surrogatepass")
    try:
        check_filter_form(topic_filter)
    except TopicError as error:
        raise ConfigError(f"line {line}: {error}") from None
    if topic_filter.count(b"/") > FILTER_LEVELS_MAX:
        raise ConfigError(f"line {line}: the topic has more than {FILTER_LEVELS_MAX} levels")
    return AclRule("" if is_pattern else user, is_pattern, says, topic_filter, line)
