"""The forms of a block for links that lack dictionaries of its first form, made when the first such link comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from .tagging import Instead, SentBytes

FORMS_MAX: Final = 8


class SentForm(Protocol):
    """Bytes to be sent, and what links have to account of them."""

    @property
    def sent(self) -> SentBytes | None:
        """None: nothing."""


E = TypeVar("E", bound=SentForm)


class OtherForms(Generic[E]):
    """What links get of a block that lack dictionaries of its first form: each form is made once for all of them."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[Instead], E]) -> None:
        """`make` makes the form in which other dictionaries, or none, take the place of some."""
        self._make = make
        self._made: dict[Instead, E] = {}

    def form(self, instead: Instead) -> E:
        """The form in which other dictionaries, or none, take the place of some."""
        made = self._made.get(instead)
        if made is None:
            made = self._make(instead)
            if len(self._made) < FORMS_MAX:
                self._made[instead] = made
        return made

    def measure(self, instead: Instead) -> int:
        """Make a form, and so find out what dictionaries save on it; how many bytes of it need none."""
        sent = self.form(instead).sent
        return 0 if sent is None else sent.plain_bytes
