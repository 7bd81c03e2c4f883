"""Who may have a store open: a file is replaced under nobody's feet, and readers that were killed take no slots."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import StoreError, StoreFormatError
from lexicast.storage.dualdb.engine import DualDB
from lexicast.storage.dualdb.environment import DUAL_FILE
from lexicast.storage.dualdb.options import DualOptions
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file import locks
from lexicast.storage.file.disk import POISON_FILE
from lexicast.storage.log_scanner import LogScanner
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.store import Store

from .test_maintenance import fill_dual, fill_store, found_in, open_store

READ = "begin = lmdb.open({path!r}, subdir={subdir}, readonly=True, max_dbs=32).begin; txn = begin()"
SHARE = (
    "from pathlib import Path; from lexicast.storage.log_scanner import LogScanner; found = LogScanner(Path({path!r}))"
)
# Ends with the owner's own exit code, so that a test sees when no step was left to crash before.
DONE, CRASHED = 0, 9


@contextmanager
def process(program: str, path: Path, subdir: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a program and then stands still."""
    code = program.format(path=str(path), subdir=subdir)
    code = f"import lmdb, sys\n{code}\nprint('there', flush=True)\nfor _ in sys.stdin: told()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as started:  # type: ignore[call-overload]  # a dict
        assert started.stdout.readline() == "there\n"
        try:
            yield started
        finally:
            started.kill()


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, dict[int, bytes]]:
    store = open_store(tmp_path / "store")
    wanted = fill_store(store)
    store.close()
    return tmp_path / "store", wanted


def is_whole(directory: Path, wanted: dict[int, bytes]) -> None:
    assert maintenance.check(directory).sound
    store = open_store(directory)
    assert found_in(store) == wanted
    store.close()


@pytest.mark.parametrize("replace", [maintenance.compact, maintenance.repair])
@pytest.mark.parametrize("reader", [READ, SHARE])
def test_no_file_is_replaced_under_a_reader(
    filled: tuple[Path, dict[int, bytes]], replace: Callable[[Path], object], reader: str
) -> None:
    """With the file replaced the next owner would take the lock file's word, see nothing, and overwrite everything."""
    directory, wanted = filled
    before = (directory / DATA_FILE).read_bytes()
    with process(reader, directory) as started:
        with pytest.raises(StoreError, match=f"is being read by process {started.pid}: wait until that has ended"):
            replace(directory)
        assert (directory / DATA_FILE).read_bytes() == before
        is_whole(directory, wanted)
    replace(directory)
    is_whole(directory, wanted)
    assert not list(directory.glob("*.new"))


def test_no_dualdb_is_replaced_under_a_reader(tmp_path: Path) -> None:
    db = DualDB.open(tmp_path / "dual", DualOptions(map_bytes=1 << 28, reserve_bytes=0))
    fill_dual(db)
    db.close()
    with (
        process(READ, tmp_path / "dual" / DUAL_FILE, subdir=False) as started,
        pytest.raises(StoreError, match=f"is being read by process {started.pid}"),
    ):
        maintenance.compact(tmp_path / "dual")
    maintenance.compact(tmp_path / "dual")
    assert maintenance.check(tmp_path / "dual").sound


def test_a_reader_in_the_same_process_is_seen_as_well(filled: tuple[Path, dict[int, bytes]]) -> None:
    directory, wanted = filled
    with LogScanner(directory), pytest.raises(StoreError, match="is being read by"):
        maintenance.compact(directory)
    is_whole(directory, wanted)


def test_who_comes_while_a_file_is_replaced_is_told_to_come_again(filled: tuple[Path, dict[int, bytes]]) -> None:
    directory, _ = filled
    with locks.alone(directory, directory / DATA_FILE):
        with pytest.raises(StoreError, match="is being compacted or repaired: try again"):
            LogScanner(directory)
        with pytest.raises(StoreError, match="in use by another process"):
            open_store(directory)
    LogScanner(directory).__exit__(None, None, None)


@pytest.mark.parametrize("reader", [READ, SHARE])
def test_a_backup_copied_over_a_file_that_is_being_read_is_refused_not_overwritten(
    filled: tuple[Path, dict[int, bytes]], tmp_path: Path, reader: str
) -> None:
    directory, wanted = filled
    maintenance.backup(directory, tmp_path / "backup")
    store = open_store(directory)
    store.close()
    with process(reader, directory) as started:
        copy = directory / "copied"
        shutil.copy(tmp_path / "backup" / DATA_FILE, copy)
        copy.replace(directory / DATA_FILE)
        why = f"has been replaced while process {started.pid} had the former one open"
        with pytest.raises(StoreError, match=why):
            open_store(directory)
        with pytest.raises(StoreError, match=why):
            LogScanner(directory)
    is_whole(directory, wanted)


def crash_before(step: int, work: Callable[[], object]) -> int:
    """The exit code of a process that does `work` and ends before the step with that number."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = step

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(CRASHED)
            return real(*arguments, **named)

        return call

    for name in ("fsync", "replace", "unlink", "link", "mkdir", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    try:
        work()
        os._exit(DONE)
    except BaseException:
        os._exit(1)


@pytest.mark.parametrize("replace", [maintenance.compact, maintenance.repair])
def test_a_crash_between_any_two_steps_leaves_a_whole_store(
    filled: tuple[Path, dict[int, bytes]], tmp_path: Path, replace: Callable[[Path], object]
) -> None:
    origin, wanted = filled
    for step in range(100):
        directory = tmp_path / f"crash{step}"
        shutil.copytree(origin, directory)
        (directory / POISON_FILE).write_text("power\n")
        ended = crash_before(step, lambda at=directory: replace(at))  # type: ignore[misc]  # bound at once
        (directory / POISON_FILE).unlink(missing_ok=True)
        is_whole(directory, wanted)
        assert ended in (DONE, CRASHED)
        if ended == DONE:
            break
        maintenance.compact(directory)
        is_whole(directory, wanted)
        assert not list(directory.glob("*.new"))
    assert step > 5


# readers' slots


# An owner with four slots that clears those of the dead when it is told to.
OWN = """
import pathlib
pathlib.Path({path!r}, "lock.mdb").unlink()  # it would keep the number of slots that it was made with
env = lmdb.open({path!r}, max_dbs=32, max_readers=4)
told = env.reader_check
"""


def kill_readers(directory: Path, count: int) -> None:
    """Leave that many slots behind that nobody will give back."""
    for _ in range(count):
        with process(READ, directory):
            pass


def test_slots_of_killed_readers_are_cleared_by_whoever_needs_one(tmp_path: Path) -> None:
    options = StoreOptions(retention_s=0, max_readers=4)
    store = Store.open(tmp_path, cluster_id="c", member="m", groups=2, options=options, clock=SystemClock())
    wanted = fill_store(store)
    kill_readers(tmp_path, 3)
    found: dict[int, bytes] = {}
    # A thread has a slot of its own: none is left but those of the dead.
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.update(found_in(store)))
        thread.start()
        thread.join()
    assert found == wanted
    store.close()


@pytest.mark.parametrize("look", [maintenance.check, maintenance.stats, LogScanner])
def test_a_store_whose_slots_were_used_up_by_killed_readers_is_read(
    filled: tuple[Path, dict[int, bytes]], look: Callable[[Path], object]
) -> None:
    directory, wanted = filled
    with process(OWN, directory) as owner:
        kill_readers(directory, 4)
        assert owner.stdin is not None
        clear = threading.Timer(0.5, lambda: print(file=owner.stdin, flush=True))
        clear.start()
        found = look(directory)
        clear.join()
        if isinstance(found, LogScanner):
            found.__exit__(None, None, None)
    is_whole(directory, wanted)


def test_slots_taken_by_living_readers_are_no_damage(
    filled: tuple[Path, dict[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SLOTS_WAIT_S", 0.2)
    with ExitStack() as stack:
        stack.enter_context(process(OWN, filled[0]))
        for _ in range(4):
            stack.enter_context(process(READ, filled[0]))
        with pytest.raises(StoreError, match=r"all reader slots of the store .* are taken: wait") as caught:
            maintenance.stats(filled[0])
    assert not isinstance(caught.value, StoreFormatError)
