"""What has become of the cells of matchers' conditions, as the coordination server tells it between drills. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CellsSeen:
    """The most of each that was seen at once, and how many maps there were. Another server begins other cells."""

    def __init__(self) -> None:
        self.cells = 0
        self.split = 0
        self.copied = 0
        self.maps = 0
        self._version: int | None = None

    def looked(self, said: Mapping[str, Any]) -> None:
        """What there is now; nothing where no matcher ever was."""
        if not said:
            return
        self.cells = max(self.cells, said["cells"])
        self.split = max(self.split, said["split"])
        self.copied = max(self.copied, said["with_more_copies"])
        self.maps += self._version is not None and said["version"] != self._version
        self._version = said["version"]
