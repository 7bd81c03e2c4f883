"""What the drills' publishers say, and who is to get it. Pure."""

from __future__ import annotations

import re
from typing import Final, Protocol

_PLAIN: Final = re.compile(rb"([a-z0-9-]+) (\d+)")


class DrillMessages(Protocol):
    """Payloads that name their publisher and its publication's number."""

    def payload(self, publisher: str, number: int) -> bytes:
        """That publication's, one line."""

    def read(self, payload: bytes) -> tuple[str, int] | None:
        """Whose it is, and its number; None: it is none of these."""

    def wanted(self, where: str, publisher: str, number: int) -> bool:
        """Whether a subscriber with this condition ("": none) is to get it."""


class PlainMessages:
    """Nothing else is in them, so nobody has a condition."""

    def payload(self, publisher: str, number: int) -> bytes:
        return b"%s %d" % (publisher.encode(), number)

    def read(self, payload: bytes) -> tuple[str, int] | None:
        found = _PLAIN.fullmatch(payload)
        return None if found is None else (found[1].decode(), int(found[2]))

    def wanted(self, where: str, publisher: str, number: int) -> bool:
        return True
