"""`python -m lexicast.testing.simulate`: whole clusters from seeds, with mixed faults, and an auditor.

Each seed is a story: coordinators, copies and brokers as they stand, with simulated disks, wires, processes and time;
clients that publish and read; and what goes wrong meanwhile. It is checked that nothing acknowledged is lost, that
nobody sees what is not committed, and more (docs/simulator.md). A story is the same each time: the seed decides it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from .auditor import Violation
from .breaks import BREAKS
from .running import Outcome, play_all, seeds_until_caught
from .story import run
from .transcript import Transcript

PROGRAM = "python -m lexicast.testing.simulate"
SEEDS = 200
BREAK_SEEDS = 500
# How often progress is told: on a terminal, and elsewhere.
PROGRESS_S, PROGRESS_LINE_S = 0.2, 15.0
SHOWN_MAX = 10
INTERRUPTED = 130


def options() -> argparse.ArgumentParser:
    """What may be asked for."""
    made = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seeds", type=_positive, metavar="N", help=f"how many stories (default {SEEDS})")
    made.add_argument("--first", type=_whole, metavar="S", help="the first seed (default 0)", default=0)
    made.add_argument(
        "--processes", type=_positive, metavar="N", help="processes that share them (default: one for each CPU)"
    )
    made.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write what came out here, without FILE to stdout"
    )
    made.add_argument("--seed", type=_whole, metavar="S", help="play one story")
    made.add_argument(
        "--transcript",
        nargs="?",
        const="-",
        metavar="FILE",
        help="with --seed: write who did what, and when, here, without FILE to stdout",
    )
    made.add_argument("--break", dest="broken", choices=sorted(BREAKS), help="break this on purpose")
    made.add_argument(
        "--breaks",
        action="store_true",
        help=f"break each thing on purpose until a story notices, at most --seeds stories long ({BREAK_SEEDS})",
    )
    return made


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("not below 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("not below 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 0 nothing was violated (with --breaks: each was caught), 1 something was
    (one was not), 130 Ctrl-C."""
    parser = options()
    chosen = parser.parse_args(arguments)
    if chosen.transcript and chosen.seed is None:
        parser.error("--transcript shows one story: say which with --seed")
    if chosen.breaks and (chosen.broken or chosen.seed is not None):
        parser.error("--breaks plays all of them, from --first on: leave out --break and --seed")
    try:
        with Interrupts() as interrupts:
            if chosen.breaks:
                return _breaks(chosen, interrupts)
            return _many(chosen, interrupts) if chosen.seed is None else _one(chosen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class Interrupts:
    """Ctrl-C is noted, and ends what runs between two stories, a fraction of a second each; who presses it once more
    does not wait. Raised where it comes it would come up in weak references' callbacks, of which stories make many:
    there Python prints it and drops it."""

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True

    def check(self) -> None:
        """Between stories. Raises KeyboardInterrupt."""
        if self._came:
            raise KeyboardInterrupt


class ProgressLine:
    """One line, written over on a terminal, now and then elsewhere; on stderr."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._due_s = time.monotonic() + (0.0 if self._terminal else PROGRESS_LINE_S)

    def show(self, text: str) -> None:
        """How far it is."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + (PROGRESS_S if self._terminal else PROGRESS_LINE_S)
            print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
            sys.stderr.flush()

    def end(self) -> None:
        """Something else is written now."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def replaying(seed: int, broken: str | None) -> str:
    """The command that plays one story again, and shows it."""
    return f"{PROGRAM} --seed {seed}{f' --break {broken}' if broken else ''} --transcript"


def _one(chosen: argparse.Namespace) -> int:
    transcript, violated = Transcript(keeps=bool(chosen.transcript)), None
    began_s = time.monotonic()
    try:
        run(chosen.seed, BREAKS[chosen.broken] if chosen.broken else None, transcript)
    except Violation as violation:
        violated = str(violation)
    if chosen.transcript:
        _write(chosen.transcript, transcript.text() + "\n")
    if not chosen.json or chosen.json != "-":
        print(f"VIOLATION {violated}" if violated else f"seed {chosen.seed}: everything held")
        if violated and not chosen.transcript:
            print(f"replay: {replaying(chosen.seed, chosen.broken)}")
    outcome = Outcome(1, {chosen.seed: violated} if violated else {}, time.monotonic() - began_s)
    _write_json(chosen, _figures(outcome, chosen))
    return 1 if violated else 0


def _many(chosen: argparse.Namespace, interrupts: Interrupts) -> int:
    progress, count = ProgressLine(), chosen.seeds or SEEDS

    def tell(outcome: Outcome) -> None:
        interrupts.check()
        speed = outcome.runs / max(outcome.seconds, 1e-9)
        found = len(outcome.violations)
        progress.show(f"{outcome.runs} of {count} stories, {speed:.1f} a second, {found} with a violation")

    processes = chosen.processes or os.cpu_count() or 1
    outcome = play_all(chosen.first, count, chosen.broken, min(processes, count), tell)
    progress.end()
    shown = sys.stderr if chosen.json == "-" else sys.stdout
    for seed, violated in sorted(outcome.violations.items())[:SHOWN_MAX]:
        print(f"VIOLATION {violated}\n    replay: {replaying(seed, chosen.broken)}", file=shown)
    if len(outcome.violations) > SHOWN_MAX:
        print(f"... and {len(outcome.violations) - SHOWN_MAX} more", file=shown)
    stopped = f" of {count}, stopped by Ctrl-C" if outcome.interrupted else ""
    speed = outcome.runs / max(outcome.seconds, 1e-9)
    print(
        f"{outcome.runs} stories{stopped}, {len(outcome.violations)} with a violation, {outcome.seconds:.1f} s "
        f"({speed:.1f} a second)",
        file=shown,
    )
    _write_json(chosen, _figures(outcome, chosen))
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.violations else 0


def _figures(outcome: Outcome, chosen: argparse.Namespace) -> dict[str, Any]:
    return {
        "driver": "testing.simulate",
        "first": chosen.first if chosen.seed is None else chosen.seed,
        "break": chosen.broken,
        "runs": outcome.runs,
        "violations": len(outcome.violations),
        "violated": {str(seed): violated for seed, violated in sorted(outcome.violations.items())},
        "seconds": round(outcome.seconds, 2),
        "runs_per_s": round(outcome.runs / max(outcome.seconds, 1e-9), 2),
        "interrupted": outcome.interrupted,
    }


def _breaks(chosen: argparse.Namespace, interrupts: Interrupts) -> int:
    most, progress, began_s = chosen.seeds or BREAK_SEEDS, ProgressLine(), time.monotonic()
    shown = sys.stderr if chosen.json == "-" else sys.stdout
    caught: dict[str, dict[str, Any]] = {}
    interrupted = False
    try:
        for name, each in BREAKS.items():
            print(f"{name}: {each.what}", file=shown, flush=True)
            tell = partial(_tell_break, progress, interrupts, name, most)
            seeds, violated = seeds_until_caught(name, chosen.first, most, tell)
            progress.end()
            caught[name] = {"what": each.what, "seeds": seeds, "violation": violated}
            if seeds is None:
                print(f"    NOT caught in {most} stories", file=shown)
            else:
                print(f"    caught after {seeds} stories: {violated}", file=shown)
                print(f"    replay: {replaying(each.first + chosen.first + seeds - 1, name)}", file=shown)
    except KeyboardInterrupt:
        interrupted = True
        progress.end()
    number, seconds = sum([each["seeds"] is not None for each in caught.values()]), time.monotonic() - began_s
    stopped = ", stopped by Ctrl-C" if interrupted else ""
    print(f"{number} of {len(BREAKS)} breaks caught{stopped}, {seconds:.1f} s", file=shown)
    figures = {
        "driver": "testing.simulate",
        "first": chosen.first,
        "breaks": len(BREAKS),
        "breaks_caught": number,
        "caught": caught,
        "seconds": round(seconds, 2),
        "interrupted": interrupted,
    }
    _write_json(chosen, figures)
    if interrupted:
        return INTERRUPTED
    return 0 if number == len(BREAKS) else 1


def _tell_break(progress: ProgressLine, interrupts: Interrupts, name: str, most: int, at: int) -> None:
    interrupts.check()
    progress.show(f"{name}: story {at} of at most {most}")


def _write(place: str, text: str) -> None:
    if place == "-":
        sys.stdout.write(text)
    else:
        Path(place).write_text(text, encoding="utf-8")


def _write_json(chosen: argparse.Namespace, figures: dict[str, Any]) -> None:
    if chosen.json:
        _write(chosen.json, json.dumps(figures, indent=2) + "\n")
