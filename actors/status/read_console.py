"""What commands print their tables with: rich's console, but for readers that have gone."""

from __future__ import annotations

from rich.console import Console


class ReadConsole(Console):
    """rich's own ends the process with 1 where nobody reads any more; `cli.common.reported` ends it quietly, as it does
    with what is printed otherwise."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError."""
        raise BrokenPipeError
