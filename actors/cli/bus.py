"""`lexicast pub`, `sub` and `history`: the Python client at the shell, of an operator or of a user who logs in."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import LAST_MAX

from ..status.printable import printable
from .common import DataDirOption, find_cluster, reported, run_async

GIVE_UP_S: Final = 30.0
READ_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
STDIN: Final = 0

AddressOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Where users log in (link:tls:HOST:PORT; link:tcp:HOST:PORT on the broker's machine), or a Ray (auto, "
        "HOST:PORT, ray://HOST:PORT), instead of a data folder.",
        show_default=False,
    ),
]
UserOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--user", "-u", help="Log in as this user (else LEXICAST_USER); needs no key.", show_default=False),
]
PasswordFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A file whose first line is the password (else LEXICAST_PASSWORD_FILE).",
        show_default=False,
        dir_okay=False,
    ),
]
TokenFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A file whose first line is a token (else LEXICAST_TOKEN_FILE).", show_default=False, dir_okay=False
    ),
]
CaFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Certificates of who vouches for brokers (else LEXICAST_CA_FILE, else the system's).",
        show_default=False,
        dir_okay=False,
    ),
]
FilterArgument = Annotated[
    list[str], typer.Argument(metavar="FILTER...", help="Topics or filters: + one level, # all below.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a message.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Topic, position and time before each payload.")]
WhereOption = Annotated[
    str | None, typer.Option(metavar="CONDITION", help='Only messages for which this holds: "delay > 30 AND ...".')
]
QosOption = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]


def find_bus(
    address: str | None,
    data_dir: Path | None,
    user: str | None,
    password_file: Path | None,
    token_file: Path | None,
    ca_file: Path | None,
) -> dict[str, Any]:
    """The arguments for `lexicast.connect`: of a login, by options or by the environment, else as `find_cluster`.

    Raises UsageError, ConfigError.
    """
    from ..client.address import ADDRESS_VARIABLE, LINK_PREFIX  # loads links: only where they are used
    from ..link.credentials import CA_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE, secret_of_file

    if all([each is None for each in (user, password_file, token_file, ca_file)]):
        by_environment = any([os.environ.get(name) for name in (USER_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE)])
        if data_dir is None and (address or os.environ.get(ADDRESS_VARIABLE, "")).startswith(LINK_PREFIX):
            return {"address": address}
        if data_dir is not None or address is not None or not by_environment:
            return find_cluster(address, data_dir)
        return {}
    if data_dir is not None:
        raise UsageError("give --data-dir, which is for operators, or a login, not both")
    if user is None:
        user = os.environ.get(USER_VARIABLE) or None
    if password_file is None and token_file is None:
        password_file = None if user is None else _path_of(PASSWORD_VARIABLE)
        token_file = None if password_file is not None else _path_of(TOKEN_VARIABLE)
    return {
        "address": address,
        "user": user,
        "password": None if password_file is None else secret_of_file(password_file),
        "token": None if token_file is None else secret_of_file(token_file),
        "tls": ca_file or _path_of(CA_VARIABLE),
    }


def _path_of(variable: str) -> Path | None:
    named = os.environ.get(variable)
    return Path(named) if named else None


@reported
def pub(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    payload: Annotated[str | None, typer.Argument(help="The payload as text; else --stdin or --file.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Publish each line of standard input.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Publish a file's content.")
    ] = None,
    qos: QosOption = 1,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Keep it as the topic's retained message.")] = False,
    count: Annotated[int, typer.Option(min=1, help="Publish it so many times.")] = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Publish to a topic; returns when the cluster has acknowledged (QoS 1 and 2: stored for good).

    lexicast pub flights/JFK '{"delay": 5}' --retain

    tail -f events.jsonl | lexicast pub events --stdin
    """
    if (payload is not None) + stdin + (file is not None) != 1:
        raise UsageError("give one of PAYLOAD, --stdin, --file")
    if stdin and count != 1:
        raise UsageError("--count repeats a payload; with --stdin each line is published once")
    content = file.read_bytes() if file is not None else (payload or "").encode(errors="surrogateescape")

    from ..client.connect import connect  # loads the client and its codecs: only here

    found = find_bus(address, data_dir, user, password_file, token_file, ca_file)

    async def work() -> None:
        async with connect(**found, give_up_s=GIVE_UP_S) as bus:
            if not stdin:
                positions = await bus.publish_many(((topic, content) for _ in range(count)), qos=qos, retain=retain)
                _say_published(count, str(positions[-1]))
                return
            published, last = 0, ""
            async for lines in _lines():
                positions = await bus.publish_many([(topic, line) for line in lines], qos=qos, retain=retain)
                published, last = published + len(positions), str(positions[-1])
            _say_published(published, last)

    run_async(work())


def _say_published(count: int, last: str) -> None:
    """To people only: a script that wants positions uses the client."""
    if sys.stderr.isatty():
        typer.echo(f"published {count}" + (f", last at {last}" if last else ""), err=True)


async def _lines() -> AsyncIterator[list[bytes]]:
    """The whole lines that each read of standard input brings, without their ends. Raises UsageError (too long)."""
    rest = b""
    while data := await asyncio.to_thread(os.read, STDIN, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise UsageError(f"a line has more than {LINE_BYTES_MAX} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


@reported
def sub(
    filter: FilterArgument,
    since: Annotated[
        str | None,
        typer.Option(help="Start in the past: a duration (10m), a time, 'beginning', or GROUP:EPOCH:OFFSET."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="End at this time, or after this duration.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")] = None,
    where: WhereOption = None,
    qos: QosOption = 1,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Print what is published to topics that match FILTER, until Ctrl-C.

    lexicast sub 'flights/+/delay' 'weather/#' --since 10m

    lexicast sub '#' --json --count 100

    lexicast sub 'flights/#' --where "delay > 30 AND carrier IN ('UA', 'AA')"
    """

    from ..client.connect import connect  # loads the client and its codecs: only here

    found = find_bus(address, data_dir, user, password_file, token_file, ca_file)

    async def work() -> None:
        async with (
            connect(**found) as bus,
            bus.subscribe(filter, since=since, until=until, where=where, qos=qos) as messages,
        ):
            await print_messages(messages, count, as_json, verbose)

    run_async(work())


@reported
def history(
    filter: FilterArgument,
    since: Annotated[str, typer.Option(help="A duration (1h), a time, 'beginning', or a position.")] = "beginning",
    until: Annotated[str | None, typer.Option(help="Up to this time.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many messages.")] = None,
    last: Annotated[int | None, typer.Option(min=1, max=LAST_MAX, help="Of each topic the last so many.")] = None,
    where: WhereOption = None,
    count: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Print what was published to topics that match FILTER, as long as retention has kept it; then end.

    lexicast history 'flights/+' --since 1h

    lexicast history '#' --since 2026-01-01T00:00:00Z --json --limit 1000

    lexicast history 'device/17/+' --last 1

    lexicast history 'flights/#' --since 1d --count
    """
    if count and (limit is not None or last is not None or as_json or verbose):
        raise UsageError("--count prints a number: it goes with --since, --until and --where alone")

    from ..client.connect import connect  # loads the client and its codecs: only here

    found = find_bus(address, data_dir, user, password_file, token_file, ca_file)

    async def work() -> None:
        async with connect(**found, give_up_s=GIVE_UP_S) as bus:
            if count:
                typer.echo(await bus.count(filter, since=since, until=until, where=where))
                return
            messages = bus.history(filter, since=since, until=until, limit=limit, last=last, where=where)
            await print_messages(messages, None, as_json, verbose)
            if damaged := bus.statistics["undecodable"]:
                typer.echo(f"lexicast: {damaged} payloads cannot be decompressed, --json says why", err=True)

    run_async(work())


async def print_messages(messages: AsyncIterator[Any], count: int | None, as_json: bool, verbose: bool) -> None:
    """Print messages as they come, `count` of them (None: all)."""
    left = count
    out = sys.stdout.buffer
    shown_line = shown if sys.stdout.isatty() else _line
    async for message in messages:
        out.write(shown_line(message, as_json, verbose))
        out.flush()
        if left is not None:
            left -= 1
            if left == 0:
                return


def _line(message: Any, as_json: bool, verbose: bool) -> bytes:
    """One message as printed: its payload as it is, with --json as text where it is UTF-8, else Base64."""
    if as_json:
        return json.dumps(_plain(message), ensure_ascii=False).encode() + b"\n"
    return (_head(message).encode() if verbose else b"") + bytes(message.payload) + b"\n"


def shown(message: Any, as_json: bool, verbose: bool) -> bytes:
    """One message as a terminal is given it: what would command the terminal is an escape, and so are bytes that are no
    text. Files and pipes get the bytes as they are."""
    if as_json:
        line = json.dumps(_plain(message), ensure_ascii=False)
        return "".join([each if each.isprintable() else json.dumps(each)[1:-1] for each in line]).encode() + b"\n"
    payload = bytes(message.payload).decode(errors="backslashreplace")
    return ((printable(_head(message)) if verbose else "") + printable(payload, kept="\n\t")).encode() + b"\n"


def _head(message: Any) -> str:
    return f"{message.topic} {message.position} {message.time.isoformat()} "


def _plain(message: Any) -> dict[str, Any]:
    payload: dict[str, str | None]
    try:
        payload = {"payload": message.payload.decode()}
        if message.damaged:
            payload = {"payload": None, "damaged": message.damaged}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(message.payload).decode()}
    return {
        "topic": message.topic,
        **payload,
        "position": str(message.position),
        "time": message.time.isoformat(),
        "qos": message.qos,
        "retain": message.retain,
        "publisher": message.publisher,
    }
