"""Two Rays never run at once: what starts one is a single unit of work (`make test` runs two workers)."""

from __future__ import annotations

import re

from ..support.units_of_work import LONG_FILES, RAY, RAY_FILES, turn_of, unit_of
from .repository import ROOT, TESTS, name, text

# What a file holds that starts one; the five minutes take `lexicast up` from README.
STARTS = re.compile(
    r"--ready-file|lexicast_up\(|ray\.init\(|lexicast\.bench\.demo\"|bench\.(?:ray_up|observed)\.driver"
)
OTHERS = {"tests/docs/test_five_minutes.py"}


def test_what_starts_ray_is_one_unit_of_work() -> None:
    starting = {name(path) for path in TESTS if path.name.startswith("test_") and STARTS.search(text(path))}
    own = {name(path) for path in TESTS if path.name == "test_units_of_work.py"}
    assert set(RAY_FILES) == (starting - own) | OTHERS
    assert {unit_of(f"{file}::test_it[a::b]") for file in RAY_FILES} == {RAY}
    assert unit_of("tests/cluster/test_cells.py::test_it") == "tests/cluster/test_cells.py"


def test_what_takes_longest_is_begun_first() -> None:
    files = ["tests/cluster/test_cells.py", *LONG_FILES, RAY_FILES[0]]
    assert sorted([f"{file}::test_it" for file in files], key=turn_of) == [f"{file}::test_it" for file in files[::-1]]
    assert all((ROOT / file).exists() for file in LONG_FILES)
