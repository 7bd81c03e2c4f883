"""The driver of who looks, from end to end: what it measures, and that everything it asked was answered."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

# Imported by its name, so that it is seen that a Ray is started here (tests/tidy).
driver: Any = import_module("lexicast.bench.observed.driver")


def test_it_measures_who_looks_and_what_answers_take(tmp_path: Path) -> None:
    file = tmp_path / "observed.json"
    arguments = ["--quick", "--rounds", "2", "--topics", "300", "--sessions", "40", "--tries", "2"]
    assert driver.main([*arguments, "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told["problems"] == []
    assert told["figures"]["observed_ratio"] > 0
    assert told["figures"]["observed_all_ratio"] > 0
    assert told["figures"]["api_ms"] > 0
    assert 0 < told["figures"]["api_kib"] < 1024
    assert told["samples"]["observed"]["answers"] > 0
    if shutil.which("chromium"):
        assert told["figures"]["page_ms"] > 0
        assert 5 < told["figures"]["page_kib"] < 300
    assert all(told["samples"][path]["bytes"] > 0 for path in driver.PATHS)
