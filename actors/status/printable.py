"""What others wrote, as a terminal may be given it.

Topics, payloads and client ids come from the network. Written to a terminal as they are, ESC and its like (also U+009B,
two bytes in UTF-8) move its cursor, set its title or type for its user, and marks of writing direction show a line as
another one.
"""

from __future__ import annotations

from typing import Final

# Not printable by Unicode, and yet text: joiners, without which some scripts and pictures fall apart.
_JOINERS: Final = "\u200c\u200d"


def printable(text: str, kept: str = "") -> str:
    """`text` with what cannot be seen as escapes (`\\x1b`, `\\u202e`), but for the characters of `kept`."""
    if text.isprintable():
        return text
    kept += _JOINERS
    return "".join(
        [each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text]
    )
