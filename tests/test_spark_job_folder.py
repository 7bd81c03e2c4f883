"""The temporary folders of Spark jobs: removed at a job's end, and those of dead jobs at a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lexicast.raydp_jobs.job_folder import PREFIX, YOUNG_S, java_option, job_folder, make, remove, sweep


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def filled(job: str, age_s: float) -> Path:
    folder = job_folder(job)
    make(folder)
    (folder / "native_libs1").mkdir()
    (folder / "native_libs1" / "library.so").write_bytes(b"x")
    made = folder.stat().st_mtime - age_s
    os.utime(folder, (made, made))
    return folder


def test_a_folder_is_the_users_alone_and_goes_with_what_it_holds(temporary: Path) -> None:
    folder = filled("one", 0)
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    remove(folder)
    remove(folder)
    assert list(temporary.iterdir()) == []


def test_those_of_dead_jobs_go_at_a_start(temporary: Path) -> None:
    dead, young, used = filled("dead", 2 * YOUNG_S), filled("young", 0), filled("used", 2 * YOUNG_S)
    other = temporary / f"{PREFIX}-of-somebody-else"
    other.mkdir()
    os.utime(other, (0, 0))
    process = subprocess.Popen([sys.executable, "-c", "input()", java_option(used)], stdin=subprocess.PIPE)
    try:
        make(job_folder("next"))
        assert not dead.exists()
        assert all(path.exists() for path in (young, used, other, job_folder("next")))
    finally:
        process.communicate(b"\n")
    sweep(temporary)
    assert not used.exists()
