"""The check of a data folder's stores before anything starts: what is wrong is told in a second, by its name.

It runs in a process of its own. A damaged LMDB file can end the process that opens it (SIGBUS, SIGSEGV): inside an
actor that would only look like an actor which does not start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreError, StoreFormatError, StorePoisonedError
from lexicast.cluster.membership import COORDINATOR
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.identity import peek_cluster_id
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.registry import FILE, Registry

from ..coordination.server import REGISTRY_FOLDER

COORDINATORS: Final = f"{COORDINATOR}-*"
LOOK_TIMEOUT_S: Final = 60.0
# The exit codes of the process: something is wrong with a store; it cannot be looked at now.
FOUND, CANNOT = 3, 4


def check_stores(config: Config, all_here: bool, wait_s: float = 0.0) -> None:
    """Look at all stores below `node.data_dir`. Raises StoreError with what is wrong and what to do.

    `all_here`: no coordinator of this cluster is on another node, so that none may be missing. `wait_s`: how long
    stores may still be in use, by actors that are ending. Blocking, about 0.3 s.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            return _check(config, all_here)
        except StoreFormatError:
            raise
        except StoreError:
            if time.monotonic() > until:
                raise


def _check(config: Config, all_here: bool) -> None:
    folder = config.node.data_path()
    if not (folder / REGISTRY_FOLDER).exists() and not any(folder.glob(COORDINATORS)):
        return  # a new cluster
    command = [sys.executable, "-m", __name__, json.dumps(config.as_dict()), "all" if all_here else "some"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise StoreError(f"the disk of {folder} does not answer: look at it, or choose another --data-dir") from None
    if ended.returncode == FOUND:
        raise StoreFormatError(ended.stderr.strip())
    if ended.returncode == CANNOT:
        raise StoreError(ended.stderr.strip())
    if ended.returncode < 0:
        raise StoreFormatError(
            f"a store below {folder} is damaged (looking at it ended in {signal.Signals(-ended.returncode).name}): "
            "restore it from a backup, or move it away to start without what it held"
        )
    if ended.returncode:
        raise StoreError(f"cannot look at the stores below {folder}: {ended.stderr.strip().splitlines()[-1]}")


def look_at_stores(config: Config, all_here: bool) -> None:
    """What the process does. Raises StoreError."""
    folder = config.node.data_path()
    known, served = registered_cluster(folder / REGISTRY_FOLDER)
    options = StoreOptions(**config.storage.options())
    for name in served if all_here else ():
        data = folder / name / DATA_FILE
        if not data.exists() or not data.stat().st_size:
            raise StoreFormatError(
                f"{data} is gone or empty, but {name} has served this cluster before: put it back, or move "
                f"{folder / REGISTRY_FOLDER} away as well to start without what it held"
            )
    for store in sorted(folder.glob(COORDINATORS)):
        _check_rights(store)
        found = peek_cluster_id(store, options)
        if known and found and found != known:
            raise StoreFormatError(
                f"{store} is the store of cluster {found}, but {folder} belongs to cluster {known}: put the right "
                "store back, or start the other cluster with its own --data-dir"
            )


def registered_cluster(folder: Path) -> tuple[str, list[str]]:
    """The cluster that the coordination server knows ("": none yet), and the coordinators that have served it."""
    if not (folder / FILE).exists():
        return "", []
    _check_rights(folder)
    registry = Registry(folder)
    try:
        cluster = registry.get("cluster")
        served = [key.rpartition("/")[2] for key in registry.items(f"incarnation/{COORDINATOR}/")]
    finally:
        registry.close()
    return "" if cluster is None else str(cluster["id"]), served


def _check_rights(folder: Path) -> None:
    """LMDB says of a file that it may not open only that it cannot."""
    for path in (folder, *folder.iterdir()):
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            raise StoreError(f"no right to read and write {path}: run as the user who owns it, or change its rights")


def main() -> None:
    """The process's entry."""
    try:
        look_at_stores(Config.from_dict(json.loads(sys.argv[1])), sys.argv[2] == "all")
    except StoreError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(FOUND if isinstance(error, StoreFormatError | StorePoisonedError) else CANNOT)


if __name__ == "__main__":
    main()
