"""Whatever lexicast writes is for its user alone, also where the umask would let everybody read it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexicast.actors.link.run_directory import run_directory
from lexicast.cluster.config.tables import load_config
from lexicast.cluster.files import create_file, make_folder, open_lock, private_umask, write_whole

CLI = [sys.executable, "-m", "lexicast.actors.cli"]
START_TIMEOUT_S = 120.0
# Written by Ray, in a folder that nobody else may enter.
RAYS = "gcs"


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What others may read, write or enter at and below a folder."""
    below = [path for path in folder.rglob("*") if RAYS not in path.relative_to(folder).parts[:-1]]
    found = [(path, path.lstat().st_mode) for path in (folder, *below)]
    return [f"{path} {stat.filemode(mode)}" for path, mode in found if mode & 0o077]


def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_folder(home / "a" / "b")
    create_file(home / "a" / "new").close()
    os.close(open_lock(home / "a" / "lock"))
    write_whole(home / "a" / "whole", b"1")
    write_whole(home / "a" / "whole", b"2")
    with private_umask():
        (home / "others").write_text("")
    assert open_to_others(home) == []
    assert sorted(path.name for path in (home / "a").iterdir()) == ["b", "lock", "new", "whole"]
    assert (home / "a" / "whole").read_bytes() == b"2"
    with pytest.raises(FileExistsError):
        create_file(home / "a" / "new")


def test_a_file_that_cannot_be_written_leaves_no_part_of_itself(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(tmp_path / "taken", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def cli(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([*CLI, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_clusters_files_are_for_its_user_alone(tmp_path: Path) -> None:
    """Data folder, sockets, ready file, token; backup, compacted and repaired stores."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "HOME": str(tmp_path / "home"),
    }
    environment.pop("RAY_AUTH_MODE", None)
    (tmp_path / "home").mkdir(mode=0o700)
    data, ready, store = tmp_path / "new" / "data", tmp_path / "ready.json", tmp_path / "new" / "data" / "coordinator-0"
    arguments = ["up", "--mqtt-port", "0", "--data-dir", str(data), "--ready-file", str(ready)]
    with (tmp_path / "log").open("w") as log:
        up = subprocess.Popen([*CLI, *arguments], env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            assert up.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        cli(environment, "pub", "a/b", "secret", "--data-dir", str(data))
        cli(environment, "store", "backup", str(store), str(tmp_path / "backup" / "today"))
        sockets = run_directory(load_config(overrides={"node.data_dir": str(data)}))
        assert len(list(sockets.glob("*.sock"))) == 2
        assert [path.name for path in sockets.glob("*.sock") if path.lstat().st_mode & 0o077] == []
        # Ray lets everybody write into its own folders, which lie in this one: nobody else enters it.
        assert sockets.stat().st_mode & 0o077 == 0
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(START_TIMEOUT_S)
    cli(environment, "store", "compact", str(store))
    cli(environment, "store", "repair", str(store))
    assert (store / "data.mdb.before-repair").exists()
    for written in (data.parent, tmp_path / "backup", tmp_path / "home", ready):
        assert open_to_others(written) == []
