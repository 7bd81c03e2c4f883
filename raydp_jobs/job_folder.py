"""Where a Spark job's Java processes put what is temporary: a folder of the job's own on each node, gone with it.

Ray's library for Java (40 MB) is unpacked anew by each of them, into a folder that nobody removes, and a process that
is killed leaves Spark's blocks beside it. So they are all told where (`java.io.tmpdir`): the folder is removed when the
job ends, and at a start those are removed whose job was killed: no process on the node names them any more.
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
