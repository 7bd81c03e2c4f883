"""`lexicast up` in a process of its own, for tests of whole clusters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexicast.actors.client.address import resolver
from lexicast.actors.status.over_link import ask_any_broker

UP_TIMEOUT_S = 240.0
STATUS_WAIT_S = 60.0
OWN_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


async def status_when(data_dir: Path, true: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
    """The cluster's status, once `true` of it."""
    resolve, now = resolver(None, data_dir, None), dict[str, Any]()
    try:
        async with asyncio.timeout(STATUS_WAIT_S):
            while not true(now := dict(await ask_any_broker(await resolve(), "cluster"))):  # noqa: ASYNC110 - of a cluster
                await asyncio.sleep(0.2)
            return now
    except TimeoutError:
        raise AssertionError(f"{what}: {now.get('coordinators')} {now.get('matchers')}") from None


@contextmanager
def lexicast_up(
    folder: Path,
    *options: str,
    config: str = "",
    environment: Mapping[str, str] = OWN_ENVIRONMENT,
    end: int = signal.SIGINT,
) -> Iterator[dict[str, Any]]:
    """`lexicast up` with its data in `folder`/data and its output in `folder`/up.log; what its ready file says. At the
    end it gets the signal `end`; where a test fails meanwhile, its output is printed."""
    (folder / "lexicast.toml").write_text(config)
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    where = ["--config", str(folder / "lexicast.toml"), "--data-dir", str(folder / "data"), "--ready-file", str(ready)]
    with (folder / "up.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lexicast.actors.cli", "up", *where, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
        )
        try:
            until = time.monotonic() + UP_TIMEOUT_S
            while not ready.exists():
                alive = process.poll() is None and time.monotonic() < until
                assert alive, (folder / "up.log").read_text()
                time.sleep(0.05)
            yield json.loads(ready.read_text())
            process.send_signal(end)
            assert process.wait(UP_TIMEOUT_S) == (0 if end == signal.SIGINT else -end), (folder / "up.log").read_text()
        except BaseException:  # pytest shows it beside what failed
            print(f"== {folder / 'up.log'}\n{(folder / 'up.log').read_text()}", flush=True)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
