"""The folders that a Spark job's Java processes leave on a node's disk, removed with the job.

    the job's folder        Spark's blocks and whatever else is temporary: all its processes are told (`java.io.tmpdir`)
    /tmp/ray/MILLISECONDS   Ray's library for Java (40 MB), unpacked anew by each of a job's two drivers; where, Ray's
                            own code says, and nobody removes it

Both go when the job ends (a library that is loaded is not read from its file any more). At a start what killed jobs
have left goes: folders that no process on the node names, libraries that none has loaded.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PREFIX: Final = "lexicast-spark"
# One that is younger may wait for the first of its processes.
YOUNG_S: Final = 600.0
CALL_TIMEOUT_S: Final = 60.0
RAY_FOLDER: Final = Path("/tmp/ray")
LIBRARY: Final = "libcore_worker_library_java.so"


def job_folder(job: str) -> Path:
    """The folder of a job with this name; not yet there."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}-{os.getuid()}-{job}"


def java_option(folder: Path) -> str:
    """What Java is told."""
    return f"-Djava.io.tmpdir={folder}"


def make_everywhere(folder: Path) -> None:
    """Make it on every node of the Ray that this process is connected to, and remove those of dead jobs."""
    _everywhere(make, folder)


def remove_everywhere(folder: Path) -> None:
    """Remove it on every node. A node that has gone is left out."""
    _everywhere(remove, folder)


def forget_libraries_everywhere(folder: Path) -> None:
    """Remove on every node what the job's processes, which still run, have unpacked of Ray."""
    _everywhere(forget_libraries, folder)


def forget_libraries(folder: Path) -> None:
    """The same on this node."""
    for process in psutil.process_iter(["cmdline"]):
        if folder.name in " ".join(process.info["cmdline"] or ()):
            for library in _loaded(process.pid):
                _remove_library(library)


def _loaded(pid: int) -> set[Path]:
    """The unpacked libraries that a process has loaded."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has just ended, or it is another user's
        return set()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(f"/{LIBRARY}")}


def _remove_library(library: Path) -> None:
    if library.parent.parent == RAY_FOLDER and library.parent.name.isdigit():  # a session's own stays with it
        shutil.rmtree(library.parent, ignore_errors=True)


def make(folder: Path) -> None:
    """The same on this node."""
    sweep(folder.parent)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove(folder: Path) -> None:
    """The same on this node."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove this user's folders in `parent` whose job has died."""
    found = [path for path in parent.glob(f"{PREFIX}-{os.getuid()}-*") if _is_old(path)]
    used = _command_lines() if found else ""
    for path in found:
        if path.name not in used:
            remove(path)
    libraries = [path for path in RAY_FOLDER.glob(f"*/{LIBRARY}") if _is_old(path)]
    loaded = {path for pid in psutil.pids() for path in _loaded(pid)} if libraries else set()
    for path in libraries:
        if path not in loaded:
            _remove_library(path)


def _is_old(path: Path) -> bool:
    with suppress(OSError):  # it has just gone
        made = path.lstat()
        return made.st_uid == os.getuid() and time.time() - made.st_mtime > YOUNG_S
    return False


def _command_lines() -> str:
    return "\n".join([" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])])


def _everywhere(work: Callable[[Path], None], folder: Path) -> None:
    own = ray.get_runtime_context().get_node_id()
    work(folder)
    list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    others = [node["NodeID"] for node in list_nodes() if node["Alive"] and node["NodeID"] != own]
    remote: Any = ray.remote(num_cpus=0)(work)
    refs = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(folder)
        for node in others
    ]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=CALL_TIMEOUT_S)
