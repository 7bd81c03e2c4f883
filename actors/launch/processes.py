"""The processes below `lexicast up`: listed, ended, and remembered for the one who cleans up after a kill.

Ray's servers die with the process that started them, its workers when they notice; its agents may outlive all by a
minute. So `up` writes down what runs below it, and the next one on the folder (or `lexicast down`) ends what is left.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from lexicast.cluster.files import write_whole

PROCESSES_FILE: Final = "processes.json"
# A process is known by its number and its start, which psutil computes from the boot time: it moves with the clock.
STARTS_ALIKE_S: Final = 2.0


def children() -> list[psutil.Process]:
    """The processes below this one: an embedded Ray's, its workers and agents included."""
    return psutil.Process().children(recursive=True)


def end_processes(processes: list[psutil.Process], wait_s: float) -> None:
    """Wait till they have ended, kill those that have not."""
    _, left = psutil.wait_procs(processes, timeout=wait_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def note_processes(data_dir: Path) -> None:
    """Remember what runs below this process. A full disk costs only the memory of it."""
    noted = []
    for process in children():
        with suppress(psutil.Error):
            noted.append([process.pid, process.create_time()])
    with suppress(OSError):
        write_whole(data_dir / PROCESSES_FILE, json.dumps(noted).encode())


def end_leftovers(data_dir: Path) -> int:
    """End what a killed `up` of this folder left running; how many. Call it only with the folder's lock held."""
    left = [process for pid, created in _noted(data_dir) if (process := _same(pid, created)) is not None]
    end_processes(left, 0.0)
    psutil.wait_procs(left, timeout=STARTS_ALIKE_S)
    forget_processes(data_dir)
    return len(left)


def forget_processes(data_dir: Path) -> None:
    """Everything has ended."""
    with suppress(OSError):
        (data_dir / PROCESSES_FILE).unlink()


def _noted(data_dir: Path) -> list[tuple[int, float]]:
    try:
        noted = json.loads((data_dir / PROCESSES_FILE).read_text())
        return [(int(pid), float(created)) for pid, created in noted]
    except (OSError, ValueError, TypeError):
        return []  # nothing was left, or nothing that can be read


def _same(pid: int, created: float) -> psutil.Process | None:
    """The process of that number, unless the number was given to another one since."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - created) < STARTS_ALIKE_S:
            return process
    return None
