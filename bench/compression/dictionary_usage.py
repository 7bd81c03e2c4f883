"""The share of a dictionary that is used, by its size (thesis table 5.2.1), and what FemtoZip's way makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import DEFLATE_PRESET
from lexicast.compression.dictionary_content import SUBSTRINGS, Material

from ..data.corpora import Corpus
from ..report import DriverReport
from .femtozip import FemtoZip, usage

MULTIPLIERS: Final = (1, 2, 3, 5, 8, 13, 21, 34, 55, 91)

_TRAINED_ON: Final = 300
_MEASURED_ON: Final = 100
_TABLES_FROM: Final = 50
_MESSAGE_BYTES_MAX: Final = 1_000
"""Corpora of longer messages are left out: the reference codec is in Python."""


def measure(report: DriverReport, corpora: Sequence[Corpus]) -> None:
    """Adds the table: means over the corpora of short messages."""
    short = [corpus for corpus in corpora if corpus.raw_bytes / len(corpus.messages) <= _MESSAGE_BYTES_MAX]
    multipliers = MULTIPLIERS[1:7:3] if report.options.quick else MULTIPLIERS
    measured = 20 if report.options.quick else _MEASURED_ON
    rows = []
    for multiplier in multipliers:
        cells = [_cells(corpus, multiplier, measured) for corpus in short]
        means = [sum(column) / len(short) for column in zip(*cells, strict=True)]
        report.samples[f"usage {multiplier}x"] = means
        rows.append([f"{multiplier}x", *(f"{value:.1f}" for value in means)])
    columns = ["mean messages", "dictionary used %", "matches within the message %", "FemtoZip's reduction %"]
    report.table("Dictionary of ranked substrings (table 5.2.1); dictionaries not counted", columns, rows)


def _cells(corpus: Corpus, multiplier: int, measured: int) -> tuple[float, float, float]:
    half = min(_TRAINED_ON, len(corpus.messages) // 2)
    samples, fresh = corpus.messages[:half], corpus.messages[half : half + measured]
    size = multiplier * corpus.raw_bytes // len(corpus.messages)
    dictionary = Material(samples).content(size, DEFLATE_PRESET, SUBSTRINGS)
    codec = FemtoZip(dictionary, samples[:: max(1, half // _TABLES_FROM)])
    sent = sum(1 + len(codec.compress(message)) for message in fresh)
    return *usage(dictionary, fresh), reduction_percent(sum(map(len, fresh)), sent)
