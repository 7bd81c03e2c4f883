"""`lexicast recover`: who leads which topic groups, where the coordination server's registry has lost that."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.table import Table

from lexicast.cluster.config.tables import Config, load_config
from lexicast.cluster.errors import UnavailableError

from ..client.address import own_ray_address
from ..status.read_console import ReadConsole
from .common import AddressOption, ConfigOption, DataDirOption, find_cluster, overrides, reported


@reported
def recover(
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Wait no more for coordinators that are missing: what they alone may have is given up.",
        ),
    ] = False,
    coordinators: Annotated[
        int | None,
        typer.Option(min=1, help="How many coordinators the cluster has, on all nodes; of a stopped one.", metavar="N"),
    ] = None,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Make the coordination server's registry anew from what the coordinators' stores know, and say what is uncertain.

    Of a cluster that is stopped the stores on this machine are read; coordinators elsewhere tell what they know when
    they start. A cluster that runs has done that by itself: then this shows for whom it waits.

        lexicast recover

        lexicast recover --accept-loss
    """
    find_cluster(address, data_dir)  # raises for both
    loaded = load_config(config, overrides=overrides(data_dir, None))
    told = _serving(address, loaded, accept_loss)
    if told is None:
        told = _stopped(loaded, coordinators, accept_loss)
    if as_json:
        typer.echo(json.dumps({key: told.get(key) for key in ("cluster_id", "group_states", "unknown", "moved")}))
    else:
        _show(told)


def _serving(address: str | None, config: Config, accept_loss: bool) -> dict[str, Any] | None:
    """What the coordination server of a cluster that runs says; None when none runs. Raises UnavailableError."""
    if address is None:
        try:
            address = own_ray_address(config.node.data_path())
        except UnavailableError:
            return None
    from ..launch.ray_nodes import connect_ray, disconnect_ray  # loads Ray, which takes a second: only here
    from ..ray.handles import RayCoordination

    connect_ray(address)
    try:
        coordination = RayCoordination()
        return asyncio.run(coordination.give_up_missing() if accept_loss else coordination.overview())
    finally:
        disconnect_ray()


def _stopped(config: Config, coordinators: int | None, accept_loss: bool) -> dict[str, Any]:
    from ..coordination.offline import recover_registry
    from ..launch.files import lock_data_dir

    descriptor = lock_data_dir(config.node.data_path())
    with closing(os.fdopen(descriptor, "rb")):
        return asyncio.run(recover_registry(config, coordinators, accept_loss))


def _show(told: dict[str, Any]) -> None:
    from ..coordination.offline import told_groups

    if told.get("moved"):
        typer.echo(f"the registry could not be read: it lies in {told['moved']} now")
    unknown = told["unknown"]
    known = told["groups"] - len(unknown)
    typer.echo(f"cluster {told['cluster_id'][:8]}: {known:,} of {told['groups']:,} topic groups have a leader")
    table = Table()
    for column in ("coordinator", "leads", "counts in"):
        table.add_column(column, justify="left" if column == "coordinator" else "right")
    for name, leads, counts in told_groups(told):
        table.add_row(name, f"{leads:,}", f"{counts:,}")
    ReadConsole(highlight=False).print(table)
    lost = {*told["lost"]}
    stranded = [members for _, leader, members in told["group_states"].values() if leader and {*members} <= lost]
    waits = Counter(
        [" and ".join(missing) or "coordinators that have not reported yet" for missing in unknown.values()]
    )
    waits.update([" and ".join(members) for members in stranded])
    for who, groups in sorted(waits.items()):
        typer.echo(
            f"{groups:,} topic groups wait for {who}, which may have what nobody else has: start it, or, if it is gone "
            "for good, give up what it alone had (`lexicast recover --accept-loss`)"
        )
