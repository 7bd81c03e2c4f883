"""Who published something: a client id, and of what is retained where there are rules its user too.

A retained publication is delivered for as long as it lies there, so whoever gets it later has to know whose it was.
Both stand in one column of a block (`origins`), with NUL between them, which neither can hold [MQTT-1.5.4-2].
"""

from __future__ import annotations

from typing import Final

from .passwords import USER_BYTES_MAX

# Between the two: no client id may have it.
NAMES_END: Final = "\0"


def author_of(client_id: str, user: str) -> str:
    """What stands in the column; `user` "": somebody who has not logged in."""
    return f"{client_id}{NAMES_END}{user}"


def can_be_user(name: str) -> bool:
    """Whether somebody of a certificate's or token's name can be a user: text without NUL, 1 to USER_BYTES_MAX bytes.
    (Rules do not put a name with '+', '#' or '/' in it for %u, see `rules`.)"""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= USER_BYTES_MAX and NAMES_END not in name


def names_user(author: str) -> bool:
    """Whether it says whose it was."""
    return NAMES_END in author


def split_author(author: str) -> tuple[str, str]:
    """(client id, user)."""
    client_id, _, user = author.partition(NAMES_END)
    return client_id, user


def publisher_of(author: str) -> str:
    """The client id alone."""
    return author.partition(NAMES_END)[0] if NAMES_END in author else author
