"""The address that a client is given, and the brokers (`Endpoint`s) behind it.

    None              the environment's LEXICAST_ADDRESS, else the cluster that `lexicast up` runs on this data folder
    "auto", "HOST:PORT", "ray://HOST:PORT"
                      the Ray cluster there: its coordination server names the brokers
    "link:unix:PATH", "link:tcp:HOST:PORT"
                      one broker's link address, with the cluster's key
    "link:tls:HOST:PORT", "link:tcp:HOST:PORT"
                      without the key: a port of MQTT, with TLS or without, at which users log in; the first is there
                      where a login is given and no address: this machine's, 1883

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
from lexicast.cluster.protocol.broker_list import is_address

from ..link.credentials import Credentials, from_environment
from ..link.user_sockets import TCP
from ..ray.token import use_own_token
from .known_brokers import Endpoint, Resolve

ADDRESS_VARIABLE: Final = "LEXICAST_ADDRESS"
DATA_DIR_VARIABLE: Final = "LEXICAST_NODE__DATA_DIR"
RUN_FILE: Final = "run.json"
KEY_FILE: Final = "cluster.key"
LINK_PREFIX: Final = "link:"
_BRACKETS: Final = str.maketrans("", "", "[]")
LOCAL_BROKER: Final = "link:tcp:127.0.0.1:1883"
LOCAL_TLS_BROKER: Final = "link:tls:localhost:8883"


def resolver(
    address: str | None,
    data_dir: str | os.PathLike[str] | None,
    key: bytes | None,
    login: Credentials | None = None,
) -> Resolve:
    """What finds the brokers, now and after every loss. `login`: None: what the environment says, where the address is
    one at which users log in. Raises UsageError for an address that is none, or that does not go with the login."""
    if login is not None and (key is not None or data_dir is not None):
        raise UsageError("a login goes without key and data_dir: whoever holds the cluster's key may everything")
    address = address or os.environ.get(ADDRESS_VARIABLE) or None
    if login is None and key is None and data_dir is None and (address is None or address.startswith(LINK_PREFIX)):
        login = from_environment(os.environ)
        if address is None and login is not None and login.secret is None:
            login = None  # certificates to be trusted are nobody's login
    if address is None and login is not None:
        address = LOCAL_BROKER if login.tls is None else LOCAL_TLS_BROKER
    if address is None:
        folder = NodeConfig(data_dir=os.fspath(data_dir or os.environ.get(DATA_DIR_VARIABLE, ""))).data_path()
        return lambda: _running(folder)
    if address.startswith(LINK_PREFIX):
        endpoints = [_endpoint(address, key, login)]
        return lambda: _given(endpoints)
    if login is not None:
        raise UsageError(
            f"{address!r} is a Ray, which is for operators: users log in at a broker, with address="
            "'link:tls:HOST:PORT' (mqtt.tls_port), or on its own machine 'link:tcp:HOST:PORT' (mqtt.port)"
        )
    return lambda: _ray(address)


def _endpoint(address: str, key: bytes | None, login: Credentials | None) -> Endpoint:
    link = address.removeprefix(LINK_PREFIX)
    is_port = is_address(link.translate(_BRACKETS))
    if key is not None and (link.startswith("unix:") or (is_port and link.startswith(TCP))):
        return Endpoint(link, (link,), "", key)
    if key is None and is_port:
        return Endpoint(link, (link,), "", b"", login=login or Credentials())
    raise UsageError(
        f"{address!r}: write 'link:tls:HOST:PORT' (mqtt.tls_port) or 'link:tcp:HOST:PORT' (mqtt.port) and log in "
        "(user and password, or token); or 'link:unix:PATH' or 'link:tcp:HOST:PORT', a broker's link, and give the "
        "cluster's key"
    )


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
            f"no cluster runs on {folder}: start one with `lexicast up`, or say where it is (data_dir, address); "
            "users without its data folder log in at a broker (user, and address='link:tls:HOST:PORT')"
        ) from None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read ({error.strerror}): run as the user of `lexicast up`") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be understood ({error}): stop and start the cluster") from None
    whole = isinstance(run, dict) and isinstance(run.get("brokers"), dict)
    if not whole or "ray_address" not in run or "cluster_id" not in run:
        raise ConfigError(f"{path} lacks ray_address, cluster_id or brokers: stop and start the cluster")
    return dict(run)
