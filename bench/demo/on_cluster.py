"""A demo's cluster: started in a temporary folder while the flights are read, stopped and put away at the end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ..stage.clusters import DATA, running_cluster

D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True)
class DemoCluster:
    """A cluster that serves, with its files in `folder`; `run`: what it wrote of itself (run.json). `begun` ends what
    the console says of the preparations."""

    folder: Path
    run: Mapping[str, Any]
    begun: Callable[[], None]

    @property
    def data_dir(self) -> Path:
        """The cluster's data folder."""
        return self.folder / DATA


def on_cluster(
    console: Console,
    prepare: Callable[[Path], D],
    play: Callable[[DemoCluster, D], Coroutine[Any, Any, R]],
    keep: bool,
    config: str = "",
) -> R:
    """What `play` gives, played on a cluster of its own with what `prepare` makes in the folder meanwhile.

    Everything that was started has ended when it returns or raises. `keep`: the folder stays; `config`:
    what the cluster has beside the defaults (TOML). Raises `UnavailableError` when the cluster does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="lexicast-demo-"))
    try:
        with ThreadPoolExecutor(1) as pool:
            return _play(console, folder, pool.submit(prepare, folder), play, config)
    finally:
        if keep:
            console.print(f"data kept: lexicast up --data-dir {folder / DATA}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _play(
    console: Console,
    folder: Path,
    data: Future[D],
    play: Callable[[DemoCluster, D], Coroutine[Any, Any, R]],
    config: str,
) -> R:
    with console.status("starting a cluster, reading the flights") as status, running_cluster(folder, config) as run:
        prepared = data.result()
        status.update("opening links, connecting publishers and subscribers")
        return asyncio.run(play(DemoCluster(folder, run, status.stop), prepared))
