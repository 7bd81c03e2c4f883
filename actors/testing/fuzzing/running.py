"""Inputs for a target: by atheris, which follows where the code goes, else by hypothesis, which does not.

atheris (libFuzzer) is an extra (`pip install lexicast[fuzz]`); it watches what is imported under its eyes, so targets
are imported by whoever runs them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from .target import FuzzTarget

HAS_ATHERIS: Final = find_spec("atheris") is not None
EXAMPLES_A_ROUND: Final = 2_000
CRASH_PREFIX: Final = "crash-"
# libFuzzer's: an input that takes longer is a crash, and so is a process that has more.
INPUT_TIMEOUT_S: Final = 20
MEMORY_MIB_MAX: Final = 2_048


def watched() -> AbstractContextManager[Any]:
    """Import a target within this, so that where it goes is seen."""
    if not HAS_ATHERIS:
        return nullcontext()
    import atheris

    return atheris.instrument_imports(include=["lexicast"])  # type: ignore[no-any-return]  # it has no types


def run_for(target: FuzzTarget, seconds: float, folder: Path) -> None:
    """Try inputs for so long; `folder`: what is worth trying again, and what failed (`crash-...`).

    Ends the process (atheris), or returns; raises what an input brings out, after it was written down.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    if HAS_ATHERIS:
        _follow(target, seconds, folder)
    else:
        shake(target, seconds, folder)


def _follow(target: FuzzTarget, seconds: float, folder: Path) -> None:
    import atheris

    limits = [f"-max_total_time={max(1, int(seconds))}", f"-max_len={target.bytes_max}"]
    limits += [f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MIB_MAX}"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(folder)], target.attempt)
    atheris.Fuzz()


def shake(target: FuzzTarget, seconds: float, folder: Path) -> None:
    """Without atheris: seeds with changes, until the time is over. Raises what an input brings out."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        _round(target, until_s, folder)


def _round(target: FuzzTarget, until_s: float, folder: Path) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    change = st.tuples(st.integers(0, 4), st.integers(0, target.bytes_max), st.binary(min_size=1, max_size=8))

    @settings(max_examples=EXAMPLES_A_ROUND, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from([*target.seeds, b""]), st.lists(change, max_size=6))
    def attempt(seed: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        if time.monotonic() < until_s:
            attempted(target.attempt, changed(seed, changes)[: target.bytes_max], folder)

    attempt()


def attempted(attempt: Callable[[bytes], None], data: bytes, folder: Path) -> None:
    """One input; one that fails is written down."""
    try:
        attempt(data)
    except Exception:
        (folder / f"{CRASH_PREFIX}{hash(data) & 0xFFFFFFFF:08x}").write_bytes(data)
        raise


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """`data` with changes, each (what, where, with what): bytes replaced, put in, left out, repeated, or cut off."""
    for what, where, new in changes:
        at = where % (len(data) + 1)
        if what == 0:
            data = data[:at] + new + data[at + len(new) :]
        elif what == 1:
            data = data[:at] + new + data[at:]
        elif what == 2:
            data = data[:at] + data[at + new[0] :]
        elif what == 3:
            data = data[:at] + data[at // 2 :]
        else:
            data = data[:at]
    return data
