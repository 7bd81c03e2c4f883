"""The address that a client is given, and the brokers (`Endpoint`s) behind it.

    None              the environment's LEXICAST_ADDRESS, else the cluster that `lexicast up` runs on this data folder
    "auto", "HOST:PORT", "ray://HOST:PORT"
                      the Ray cluster there: its coordination server names the brokers
    "link:unix:PATH", "link:tcp:HOST:PORT"
                      one broker's link address, with the cluster's key

`lexicast up` leaves two files in its data folder, both readable by its owner alone: `run.json` (RUN_FILE) with
`ray_address`, `cluster_id` and `brokers` = {name: [link addresses]}, and `cluster.key` (KEY_FILE), the key's bytes.
With both a client on the same machine never loads Ray; without the key, it asks the coordination server.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.config.tables import NodeConfig
from lexicast.cluster.errors import ConfigError, UnavailableError, UsageError

from ..ray.token import use_own_token
from .known_brokers import Endpoint, Resolve

ADDRESS_VARIABLE: Final = "LEXICAST_ADDRESS"
DATA_DIR_VARIABLE: Final = "LEXICAST_NODE__DATA_DIR"
RUN_FILE: Final = "run.json"
KEY_FILE: Final = "cluster.key"
LINK_PREFIX: Final = "link:"


def resolver(address: str | None, data_dir: str | os.PathLike[str] | None, key: bytes | None) -> Resolve:
    """What finds the brokers, now and after every loss. Raises UsageError for an address that is none."""
    address = address or os.environ.get(ADDRESS_VARIABLE) or None
    if address is None:
        folder = NodeConfig(data_dir=os.fspath(data_dir or os.environ.get(DATA_DIR_VARIABLE, ""))).data_path()
        return lambda: _running(folder)
    if address.startswith(LINK_PREFIX):
        link = address.removeprefix(LINK_PREFIX)
        if not link.startswith(("unix:", "tcp:")) or key is None:
            raise UsageError(f"{address!r}: write 'link:unix:PATH' or 'link:tcp:HOST:PORT', and give the cluster's key")
        endpoints = [Endpoint(link, (link,), "", key)]
        return lambda: _given(endpoints)
    return lambda: _ray(address)


async def _given(endpoints: list[Endpoint]) -> list[Endpoint]:
    return endpoints


async def _ray(address: str) -> list[Endpoint]:
    try:
        from .ray_endpoints import ray_endpoints  # loading Ray takes a second: only where it is used
    except ImportError as error:
        raise UnavailableError(f"Ray is not installed ({error}): pip install lexicast") from None
    return await ray_endpoints(address)


async def _running(folder: Path) -> list[Endpoint]:
    """The brokers of the cluster that runs on `folder`."""
    run = read_run(folder)
    try:
        key = (folder / KEY_FILE).read_bytes()
    except FileNotFoundError:
        return await _ray(own_ray_address(folder))
    except OSError as error:
        raise UnavailableError(
            f"the cluster's key cannot be read ({error}): run as the user of `lexicast up`"
        ) from None
    return [
        Endpoint(str(name), tuple(str(a) for a in addresses), str(run["cluster_id"]), key)
        for name, addresses in run["brokers"].items()
    ]


def own_ray_address(folder: Path) -> str:
    """The Ray of the cluster that runs on `folder`, which will be shown the user's token. Raises as `read_run`."""
    address = str(read_run(folder)["ray_address"])
    use_own_token()
    return address


def read_run(folder: Path) -> dict[str, Any]:
    """What `lexicast up` wrote about the cluster that runs on `folder`.

    Raises UnavailableError when none runs there or the file may not be read, ConfigError when it cannot be understood.
    """
    path = folder / RUN_FILE
    try:
        run = json.loads(path.read_text())
    except FileNotFoundError:
        raise UnavailableError(
            f"no cluster runs on {folder}: start one with `lexicast up`, or say where it is (data_dir, address)"
        ) from None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read ({error.strerror}): run as the user of `lexicast up`") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be understood ({error}): stop and start the cluster") from None
    whole = isinstance(run, dict) and isinstance(run.get("brokers"), dict)
    if not whole or "ray_address" not in run or "cluster_id" not in run:
        raise ConfigError(f"{path} lacks ray_address, cluster_id or brokers: stop and start the cluster")
    return dict(run)
