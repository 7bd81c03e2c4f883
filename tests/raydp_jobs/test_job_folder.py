"""The temporary folders of Spark jobs: removed at a job's end, and those of dead jobs at a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lexicast.raydp_jobs.spark import job_folder as job_folders
from lexicast.raydp_jobs.spark.job_folder import (
    LIBRARY,
    PREFIX,
    YOUNG_S,
    forget_libraries,
    java_option,
    job_folder,
    make,
    remove,
    sweep,
)


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


def test_libraries_that_a_job_has_loaded_go_with_it_and_those_of_dead_jobs_at_a_start(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folders, "RAY_FOLDER", temporary)
    libraries = [temporary / name / LIBRARY for name in ("1700000000001", "1700000000002", "session_x")]
    for library in libraries:
        library.parent.mkdir()
        library.write_bytes(bytes(4096))
        os.utime(library, (0, 0))
    mine, dead, of_a_session = libraries
    folder = job_folder("one")
    program = f"""
import mmap
with open({str(mine)!r}, "rb") as file:
    loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print(flush=True)
input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, java_option(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        make(folder)
        assert [path.exists() for path in (mine, dead, of_a_session)] == [True, False, True]
        forget_libraries(folder)
        assert not mine.parent.exists()
        assert of_a_session.exists()
    finally:
        process.communicate(b"\n")
