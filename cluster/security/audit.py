"""Lines of the audit trail: what was refused, to whom. One line an event, `name="value"` with JSON's escapes, so that
what clients send makes no lines of its own. Rate limited: who is refused a million times fills no disk.

    login_refused why="wrong password" user="ada" client="sensor-7" address="192.0.2.7" left_out=12

`left_out`: events of that kind that were not written since the last one that was.
"""

from __future__ import annotations

import json
import logging
from typing import Final

log = logging.getLogger("lexicast.audit")

# Events of a kind that are written at once, and how many more a second.
AT_ONCE: Final = 20
A_SECOND: Final = 2.0
VALUE_CHARACTERS_MAX: Final = 200


class AuditTrail:
    """The events of one process."""

    def __init__(self) -> None:
        # By kind: how many may be written, as of when, and how many were left out.
        self._kinds: dict[str, tuple[float, float, int]] = {}

    def note(self, kind: str, now_s: float, **values: str | int) -> None:
        """Write an event of a kind (one of few), unless too many of them come. `now_s`: monotonic."""
        allowed, since_s, left_out = self._kinds.get(kind, (float(AT_ONCE), now_s, 0))
        allowed = min(float(AT_ONCE), allowed + (now_s - since_s) * A_SECOND)
        if allowed < 1.0:
            self._kinds[kind] = allowed, now_s, left_out + 1
            return
        self._kinds[kind] = allowed - 1.0, now_s, 0
        told = [f"{name}={_value(value)}" for name, value in values.items()]
        log.warning("%s", " ".join([kind, *told, *([f"left_out={left_out}"] if left_out else [])]))


def _value(value: str | int) -> str:
    return json.dumps(value[:VALUE_CHARACTERS_MAX] if isinstance(value, str) else value)
