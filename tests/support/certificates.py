"""Certificates for tests, and brokers that show them: one folder's authority, a server's certificate, clients'."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.bench.stage.ports import free_port

from .mqtt_harness import HOST, Served, served


def authority(folder: Path, *clients: str) -> DevelopmentAuthority:
    """A new authority in `folder`, with "server" and these clients."""
    made = DevelopmentAuthority(folder).create()
    made.issue_server(["localhost", HOST])
    for name in clients:
        made.issue_client(name)
    return made


def server_knobs(made: DevelopmentAuthority, clients: str = "no", **knobs: Any) -> dict[str, Any]:
    """As for `Config.replaced`: its server's certificate, and clients' where they are asked for ("optional")."""
    found = {
        "mqtt__tls_port": free_port(),
        "tls__certificate": str(made.path("server", "crt")),
        "tls__key": str(made.path("server", "key")),
        "tls__client_certificates": clients,
        "tls__client_ca": "" if clients == "no" else str(made.path("ca", "crt")),
    }
    return {**found, **knobs}


@contextmanager
def served_by_tls(made: DevelopmentAuthority, clients: str = "no", **knobs: Any) -> Iterator[Served]:
    """A running cluster with a port for TLS, `tls_port(running)`."""
    with served(**server_knobs(made, clients, **knobs)) as running:
        yield running


def tls_port(running: Served) -> int:
    """Its port for TLS."""
    return running.broker().config.mqtt.tls_port


def client_context(made: DevelopmentAuthority, name: str = "", newest: bool = True) -> ssl.SSLContext:
    """Of a client that trusts `made`, and shows the certificate of `name`; `newest`: TLS 1.3, else 1.2."""
    context = ssl.create_default_context(cafile=str(made.path("ca", "crt")))
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if name:
        context.load_cert_chain(made.path(name, "crt"), made.path(name, "key"))
    return context
