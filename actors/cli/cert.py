"""`lexicast cert`: certificates to try TLS with, and new ones taken by a cluster that serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError

from ..client.address import resolver
from ..client.known_brokers import Endpoint
from ..status.over_link import ask_broker
from .common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async
from .parameters import QuickCommand, QuickGroup

HOSTS: Final = ("localhost", "127.0.0.1", "::1")

cert = typer.Typer(
    cls=QuickGroup,
    help="Certificates to try TLS with; and new ones, taken by a cluster that serves.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@cert.callback()
def _group() -> None:
    pass


@cert.command(cls=QuickCommand)
@reported
def make(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go.")] = Path("certificates"),
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which clients reach the server; may be repeated. [localhost]"),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            help="Also a certificate for a client of this name (its user's, by tls.user_from = cn); repeated."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3_650, help="How long the certificates are valid.")] = 365,
) -> None:
    """Make an authority and certificates, ECDSA P-256, for a laptop, a test, a network of your own.

    Writes ca.crt and ca.key, server.crt and server.key, and NAME.crt and NAME.key for each --client. Where DIR has an
    authority already, only --client adds to it. Nothing is overwritten; all files are yours alone (mode 0600): clients
    need ca.crt, and their own two. Whoever has ca.key can make certificates that your clients believe: for the open
    internet take an authority that all believe (Let's Encrypt), and tls.certificate = its fullchain.pem.

        lexicast cert make

        lexicast cert make /etc/lexicast/tls --host broker.example --host 192.0.2.10 --client sensor-17
    """
    from ..tls.development_certificates import CA, DevelopmentAuthority, check_names  # loads OpenSSL: only here

    authority = DevelopmentAuthority(folder.absolute())
    exists, hosts = authority.path(CA, "crt").exists(), host or list(HOSTS)
    if exists and (host or not client):
        raise UsageError(f"{authority.path(CA, 'crt')} exists already: nothing is overwritten (--client adds to it)")
    check_names(hosts, client or [])
    if exists:
        authority.open()
    else:
        authority.create()
        authority.issue_server(hosts, days)
    for name in client or []:
        authority.issue_client(name, days)
    made = [*([] if exists else ["the authority (ca)", "server"]), *(client or [])]
    typer.echo(f"made in {authority.folder}: {', '.join(made)}\n\n{_what_next(authority.folder, hosts[0], client)}")


@cert.command(cls=QuickCommand)
@reported
def reload(data_dir: DataDirOption = None, address: AddressOption = None) -> None:
    """Have every broker take the files of [tls] as they are now, on its own machine.

    They look by themselves once a minute; this is for who wants to see it done. Connections that stand are not touched,
    but for those whose client's certificate is on the revocation list by now. Where a file cannot be used it is said
    why, and the old ones are used on.

        certbot renew --deploy-hook 'lexicast cert reload'
    """
    found = find_cluster(address, data_dir)

    async def work() -> None:
        typer.echo(await take_certificates(await resolver(found.get("address"), found.get("data_dir"), None)()))

    run_async(work())


async def take_certificates(endpoints: Sequence[Endpoint]) -> str:
    """Have each broker take the files of [tls] as they are now; how many did, in words. Raises UnavailableError, which
    says of each other one why not."""
    failed = []
    for endpoint in endpoints:
        try:
            said = await ask_broker(endpoint, "tls_reload")
        except (LexicastError, OSError) as error:
            said = one_line(error)
        if said:
            failed.append(f"{endpoint.name}: {said}")
    if failed or not endpoints:
        raise UnavailableError("; ".join(failed) or "no broker is known")
    return f"taken by {len(endpoints)} broker{'s' * (len(endpoints) != 1)}"


def _what_next(folder: Path, host: str, clients: list[str] | None) -> str:
    """How it is tried: the configuration, and two clients."""
    shown = clients[0] if clients else ""
    tool = f" --cert {folder}/{shown}.crt --key {folder}/{shown}.key" if shown else ""
    python = f', "{folder}/{shown}.crt", "{folder}/{shown}.key"' if shown else ""
    asked = f'client_ca = "{folder}/ca.crt"\nclient_certificates = "required"\nuser_from = "cn"\n' if shown else ""
    return f"""lexicast.toml:

[mqtt]
tls_port = 8883

[tls]
certificate = "{folder}/server.crt"
key = "{folder}/server.key"
{asked}
then:

mosquitto_pub -h {host} -p 8883 --cafile {folder}/ca.crt{tool} -t hello -m world

python -c '
import lexicast.mqtt as mqtt
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
client.tls_set("{folder}/ca.crt"{python})
client.connect("{host}", 8883)
client.loop_start()
client.publish("hello", "world", qos=1).wait_for_publish(10)'"""
