"""`lexicast trace`: where one publication is, or the hops of a marked one with their times."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from lexicast.cluster.errors import UsageError
from lexicast.cluster.protocol.requests import TRACED_BYTES_MAX

from ..cli.bus import (
    GIVE_UP_S,
    AddressOption,
    CaFileOption,
    PasswordFileOption,
    TokenFileOption,
    UserOption,
    find_bus,
)
from ..cli.common import DataDirOption, reported, run_async


@reported
def trace(
    target: Annotated[
        str,
        typer.Argument(metavar="TOPIC|POSITION", help="A topic: its last publication; or GROUP:EPOCH:OFFSET."),
    ],
    send: Annotated[
        bool, typer.Option("--send", help="Publish a marked one to TOPIC (its subscribers get it), and time each hop.")
    ] = False,
    payload: Annotated[
        str | None, typer.Option(help="With --send: the payload as text; else JSON that says what it is.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON; times in microseconds.")] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show where a publication is: its group, leader and copies, and which brokers, subscribers and shares have it.

    lexicast trace flights/JFK

    lexicast trace 43:2:1187 --json

    lexicast trace flights/JFK --send

    With --send one publication (QoS 1, forgotten after a minute) is followed from here to a subscriber at each broker.
    Operators see all brokers; who logs in, the one that serves it, of topics that it may read (and publish to).
    """
    if payload is not None and not send:
        raise UsageError("--payload is what is published: it goes with --send")
    content = None if payload is None else payload.encode(errors="surrogateescape")
    if content is not None and len(content) > TRACED_BYTES_MAX:
        raise UsageError(f"--payload has {len(content):,} bytes: at most {TRACED_BYTES_MAX:,} are traced")

    from ..client.connect import connect  # loads the client and its codecs: only here
    from .asking import find_publication, send_marked, whereabouts
    from .trace_report import hop_lines, place_lines

    found = find_bus(address, data_dir, user, password_file, token_file, ca_file)

    async def work() -> None:
        async with connect(**found, give_up_s=GIVE_UP_S) as bus:
            if send:
                hops = await send_marked(bus, target, content)
                _show(hops, hop_lines(hops), as_json)
                if hops["missing"]:
                    raise typer.Exit(1)
                return
            place = await whereabouts(bus, await find_publication(bus, target))
            _show(place, place_lines(place), as_json)

    run_async(work())


def _show(found: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    for line in [json.dumps(found)] if as_json else lines:
        typer.echo(line)
