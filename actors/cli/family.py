"""`lexicast family show NAME`: what sampling brokers have learned of a topic family, in words."""

from __future__ import annotations

from typing import Annotated

import typer

from lexicast.cluster.errors import UsageError

from ..status.printable import printable
from .common import AddressOption, DataDirOption, find_cluster, reported, run_async

family = typer.Typer(name="family", help="What was learned of topic families.", no_args_is_help=True)


@family.command()
@reported
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The family; without one all are listed.")] = None,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Print a family's newest dictionary: of a field model its templates, fields, and what each costs in bits.

    lexicast family show 'devices/+/telemetry'
    """
    from ..client.connect import connect  # loads the client and its codecs: only here
    from ..sampling.dictionary_words import description, summary

    async def work() -> None:
        async with connect(**find_cluster(address, data_dir), compress=False) as bus:  # told of all, wherever it is
            await bus.status()  # the broker has announced the dictionaries that there are when it answers
            known = {dictionary.family.decode(): dictionary for dictionary in bus.dictionaries()}
        if name is None:
            for each in sorted(known):
                typer.echo(printable(summary(known[each])))
            return
        if name not in known:
            others = ", ".join(sorted(known)) or "none yet"
            raise UsageError(f"nothing was learned of a family {name!r}: there are {others}")
        for line in description(known[name]):
            typer.echo(printable(line))

    run_async(work())
