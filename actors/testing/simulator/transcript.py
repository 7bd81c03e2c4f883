"""What happened in a story, for people: who did what and when, the faults, and the guarantee that was broken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.protocol.messages import (
    ACK,
    APPEND,
    APPENDED,
    BEAT,
    DELIVER,
    HEADS,
    LEADS,
    PUBLISH,
    REFUSED,
    REPLY,
    REQUEST,
    TAKEN,
    unpacker,
)
from lexicast.storage.log.stored_block import stored_block

TEXT_MAX = 100
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class Transcript:
    """Lines (second, who, what); `keeps`: whether somebody wants them, else nothing is spent on them."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.lines: list[tuple[float, str, str]] = []
        self.now_s: Callable[[], float] = lambda: 0.0

    def say(self, who: str, what: str) -> None:
        """Something happened."""
        if self.keeps:
            self.lines.append((self.now_s(), who, what))

    def sent(self, source: str, target: str, data: bytes) -> None:
        """Messages went onto a wire."""
        if self.keeps:
            messages = unpacker(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX)
            messages.feed(data)
            for message in messages:
                what = told(message)
                if what:
                    self.say(source, f"-> {target}: {what}")

    def text(self) -> str:
        """All of it."""
        width = max([len(who) for _, who, _ in self.lines], default=0)
        return "\n".join([f"{at:9.4f}  {who:<{width}}  {what}" for at, who, what in self.lines])

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What the product logs meanwhile is a part of it, and is shown nowhere else."""
        handler, log = _Lines(self), logging.getLogger("lexicast")
        level, propagates = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if self.keeps else logging.CRITICAL)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagates


class _Lines(logging.Handler):
    """Takes what is logged into a transcript."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript

    def emit(self, record: logging.LogRecord) -> None:
        self._transcript.say("log", record.getMessage())


def told(message: tuple[Any, ...]) -> str:
    """One message of a link; "" for those that say nothing new."""
    teller = _TELLERS.get(message[0])
    if teller is None:
        return ""
    try:
        return teller(*message[1:])
    except (LexicastError, ValueError, TypeError, IndexError) as error:
        return f"a message of kind {message[0]} that cannot be read: {error!r}"


def short(value: object) -> str:
    """Not more of it than fits a line."""
    text = repr(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def told_block(block: Block) -> str:
    """A block: where it stands, and what is in it."""
    place = f"{block.group}:{block.epoch}:{block.first}"
    if block.last != block.first:
        place += f"-{block.last}"
    if block.kind != PUBLICATIONS:
        return f"{place} control records"
    return f"{place} {b' '.join([record.payload for record in block.records()]).decode(errors='replace')}"


def _publish(tag: int, entries: Any) -> str:
    inside = [f"group {group} {body.decode(errors='replace')}" for group, _, _, body in entries]
    return f"PUBLISH {tag}: {', '.join(inside)}"


def _deliver(stream: int, blocks: Any) -> str:
    return f"DELIVER {', '.join([told_block(Block.from_wire(block)) for block in blocks])}"


def _append(items: Any) -> str:
    found = []
    for group, epoch, previous, committed, values in items:
        blocks = [told_block(stored_block(group, last, value).block) for last, value, _ in values]
        found.append(f"group {group} epoch {epoch} behind {previous}, committed {committed}: {', '.join(blocks)}")
    return f"APPEND {'; '.join(found)}"


_TELLERS: dict[int, Callable[..., str]] = {
    PUBLISH: _publish,
    ACK: lambda tag, results: f"ACK {tag}: {short(results)}",
    TAKEN: lambda tag: f"TAKEN {tag}",
    DELIVER: _deliver,
    HEADS: lambda heads: f"HEADS {short(heads)}",
    LEADS: lambda leads: f"LEADS {short(leads)}",
    APPEND: _append,
    APPENDED: lambda groups: f"APPENDED {short(groups)}",
    REFUSED: lambda groups: f"REFUSED {short(groups)}",
    REQUEST: lambda number, method, arguments: f"asks {number}: {method}{short(arguments)}",
    REPLY: lambda number, error, result: f"answers {number}: {error or short(result)}",
    BEAT: lambda: "",
}
