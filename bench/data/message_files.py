"""Messages in a file, one a line, for the parts of a driver that move them: flights, or a corpus of a gzipped file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

from lexicast.cluster.errors import UsageError

from .flights import prepare_flights


class MessageFile(NamedTuple):
    """Messages in a file, one a line."""

    name: str
    file: Path
    messages: int
    mean_bytes: float


def flights_file(directory: Path, messages: int) -> MessageFile:
    """The first flights, as JSON; the file is made in `directory`."""
    events = prepare_flights(messages, directory / "replay").events
    payloads = [event.payload for event in events if event.topic.startswith("flights/")][:messages]
    return _kept(directory, "flights", payloads)


def corpus_file(directory: Path, source: Path, messages: int) -> MessageFile:
    """The first messages of a gzipped file; theirs is made in `directory`. Raises `UsageError` when it is none."""
    try:
        with gzip.open(source, "rb") as lines:
            payloads = [line.rstrip(b"\r\n") for line, _ in zip(lines, range(messages), strict=False)]
    except OSError as error:
        raise UsageError(f"--data: cannot read {source.name}: {error}") from None
    return _kept(directory, source.name.partition(".")[0], [payload for payload in payloads if payload])


def _kept(directory: Path, name: str, payloads: list[bytes]) -> MessageFile:
    file = directory / f"{name}.messages"
    file.write_bytes(b"".join([payload + b"\n" for payload in payloads]))
    return MessageFile(name, file, len(payloads), sum(map(len, payloads)) / len(payloads))


def read_lines(file: Path, count: int) -> list[bytes]:
    """The first `count` messages of such a file."""
    with file.open("rb") as lines:
        return [line.rstrip(b"\n") for line, _ in zip(lines, range(count), strict=False)]
