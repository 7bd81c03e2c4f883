"""The forms of a block for links that lack dictionaries of its first form, made when the first such link comes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..encoding import BlockView, EncodedBlock, Encoder, Grants, Kind
    from .tagging import Instead

FORMS_MAX = 8


class Forms(Protocol):
    """The forms of what is sent for links that lack dictionaries of the first one."""

    def form(self, instead: Instead) -> EncodedBlock:
        """The form in which other dictionaries, or none, take the place of some."""

    def measure(self, instead: Instead) -> int:
        """Make a form, and so find out what dictionaries save on it; how many bytes of it need none."""


class OtherForms:
    """What links get of a block that lack dictionaries of its first form: each form is made once for all of them."""

    __slots__ = ("_aliases", "_encoder", "_grants", "_joined", "_kind", "_made", "_streamed", "_view")

    def __init__(
        self,
        encoder: Encoder,
        kind: Kind,
        view: BlockView,
        grants: Grants,
        streamed: Collection[int],
        joined: Collection[int],
        aliases: int,
    ) -> None:
        self._encoder = encoder
        self._kind = kind
        self._view = view
        self._grants = grants
        self._streamed = streamed
        self._joined = joined
        self._aliases = aliases
        self._made: dict[Instead, EncodedBlock] = {}

    def form(self, instead: Instead) -> EncodedBlock:
        """The form in which other dictionaries, or none, take the place of some."""
        made = self._made.get(instead)
        if made is None:
            shared = self._encoder.shared
            made = shared(self._kind, self._view, self._grants, self._streamed, instead, self._joined, self._aliases)
            if len(self._made) < FORMS_MAX:
                self._made[instead] = made
        return made

    def measure(self, instead: Instead) -> int:
        """Make a form, and so find out what dictionaries save on it; how many bytes of it need none."""
        sent = self.form(instead).sent
        return 0 if sent is None else sent.plain_bytes
