"""`lexicast security reload`: the files of the table [security], read anew, for a cluster that serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import typer

from lexicast.cluster.errors import ConfigError, UnavailableError, UsageError

from ..client.address import own_ray_address, resolver
from ..launch.security_files import UnreadableError, read_security
from ..status.over_link import ask_any_broker
from .cert import take_certificates
from .common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async
from .mosquitto_import import import_mosquitto
from .parameters import QuickCommand, QuickGroup

FOLLOWED_S: Final = 10.0
LOOK_S: Final = 0.1

security = typer.Typer(
    cls=QuickGroup,
    help="Who may log in to a cluster that serves, and what they may do: the files of [security].",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Ask: TypeAlias = Callable[..., Awaitable[Any]]


@security.callback()
def _group() -> None:
    pass


security.command("import", cls=QuickCommand)(import_mosquitto)


@security.command(cls=QuickCommand)
@reported
def reload(data_dir: DataDirOption = None, address: AddressOption = None) -> None:
    """Read the files of [security] anew, and have all brokers go by them; returns when they do. Where there is a port
    for TLS, brokers then take the files of [tls] too, as by `lexicast cert reload`.

    Run it on the machine of `lexicast up`, where the files are. Whoever is logged in and is no user any more, or has
    another password, or a token whose key is gone, is disconnected. Where something is wrong with a file of [security],
    the line is told, nothing changes, and `lexicast status` warns of it.

        lexicast user remove ada && lexicast security reload
    """
    found = find_cluster(address, data_dir)
    run_async(_reload(found))


async def _reload(found: dict[str, Any]) -> None:
    resolve = resolver(found.get("address"), found.get("data_dir"), None)
    try:
        endpoints = await resolve()
        ask: Ask = partial(ask_any_broker, endpoints)
        now = await ask("cluster")
    except UnavailableError:
        # Brokers that start and wait for these very files answer nobody.
        told = await asyncio.to_thread(_over_ray, str(found.get("address") or own_ray_address(found["data_dir"])))
        _tell(told[1])
    else:
        doors = [broker.get("mqtt", {}) for broker in now["brokers"].values()]
        has_tls = any([door.get("tls") or door.get("wss") for door in doors])
        if not (has_tls and now["coordination"].get("security", {}).get("paths") == {}):
            told = await _given(ask, now["coordination"])
            await _followed(ask, told[0])
            _tell(told[1])
        if has_tls:
            typer.echo(f"the files of [tls]: {await take_certificates(endpoints)}")


def _tell(changed: list[str]) -> None:
    for line in changed or ["nothing has changed"]:
        typer.echo(line)


async def _given(ask: Ask, said: dict[str, Any]) -> tuple[int, list[str]]:
    """Read the files and give them to the cluster. Raises LexicastError."""
    if "error" in said:
        raise UnavailableError(f"the coordination server does not answer ({said['error']}): try again")
    paths = said["security"]["paths"]
    if not paths:
        raise UsageError(
            "this cluster was started without files of security: set security.password_file, security.acl_file or "
            "security.jwt_key_file, and start it again"
        )
    try:
        read = await asyncio.to_thread(read_security, paths, said["security"].get("jwt_algorithms", ()))
    except UnreadableError as error:
        raise ConfigError(f"{error}: run this on the machine of `lexicast up`, as its user") from None
    except ConfigError as error:
        await ask("security_refuse", one_line(error))
        raise ConfigError(f"{error}; nothing has changed") from None
    for warning in read.warnings:
        typer.echo(f"lexicast: {warning}", err=True)
    version, changed = await ask("security_give", read.files.given())
    return version, list(changed)


async def _followed(ask: Ask, version: int) -> None:
    """Returns when all brokers that answer go by this version; who does not is told. Raises UnavailableError."""
    until = asyncio.get_running_loop().time() + FOLLOWED_S
    while True:
        brokers = (await ask("cluster"))["brokers"]
        behind = [n for n, b in brokers.items() if "error" not in b and b["security"]["version"] < version]
        if not behind:
            break
        if asyncio.get_running_loop().time() > until:
            raise UnavailableError(f"{', '.join(behind)} go by the files of before still: see `lexicast status`")
        await asyncio.sleep(LOOK_S)
    if silent := [name for name, broker in brokers.items() if "error" in broker]:
        typer.echo(f"lexicast: {', '.join(silent)} gave no answer: see `lexicast status`", err=True)


def _over_ray(address: str) -> tuple[int, list[str]]:
    """The same where no broker answers. Raises LexicastError."""
    from ..launch.ray_nodes import connect_ray, disconnect_ray  # loads Ray, which takes a second: only here
    from ..ray.handles import RayCoordination

    connect_ray(address)
    try:
        return asyncio.run(_given_by_ray(RayCoordination()))
    finally:
        disconnect_ray()


async def _given_by_ray(coordination: Any) -> tuple[int, list[str]]:
    calls = {"security_give": coordination.give_security, "security_refuse": coordination.refuse_security}

    async def ask(method: str, *arguments: Any) -> Any:
        return await calls[method](*arguments)

    return await _given(ask, await coordination.overview())
