"""Bridges over TLS to a Mosquitto that asks for certificates, and a user with a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.actors.launch.bridge_files import read_bridges
from lexicast.bench.stage.ports import free_port

from ...support.bridge_harness import EXECUTABLE, bridge, client_of, mosquitto
from ...support.certificates import authority
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Raw, close_clients

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="mosquitto is not installed")

# To those of the plain listener: what it lets in to both is the same.
LISTENER = """
listener {port} {host}
cafile {folder}/ca.crt
certfile {folder}/server.crt
keyfile {folder}/server.key
require_certificate true
"""
BRIDGES = """
[site]
address = "mqtts://{host}:{port}"
user = "lexicast"
password_file = "password"
ca = "{ca}"
{own}
reconnect_s = [0.02, 0.2]
[[site.topic]]
"""


async def test_it_shows_its_certificate_and_believes_whom_it_is_told_to(tmp_path: Path) -> None:
    certificates, strangers = tmp_path / "certificates", tmp_path / "strangers"
    made, other = authority(certificates, "site"), authority(strangers)
    port = free_port()
    (tmp_path / "password").write_text("secret\n")
    own = f'certificate = "{made.path("site", "crt")}"\nkey = "{made.path("site", "key")}"'
    file = tmp_path / "bridges.toml"

    def written(ca: Path, shown: str) -> str:
        file.write_text(BRIDGES.format(host=HOST, port=port, ca=ca, own=shown))
        return str(file)

    more = LISTENER.format(port=port, host=HOST, folder=certificates)
    async with mosquitto(tmp_path / "there", more) as there, Cluster(tmp_path / "here") as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        reader = await Raw.connect(there.port)
        await reader.subscribe("a/#", qos=1)
        ((definition, secrets),) = read_bridges(written(made.path("ca", "crt"), own))
        async with bridge(cluster, broker, definition, secrets) as server, client_of(cluster, broker) as bus:
            await eventually(lambda: server.status()["connected"])
            await eventually(lambda: len(broker.engine.shares) == 1)
            await bus.publish("a/b", b"encrypted")
            assert [each.payload for each in await reader.messages(1)] == [b"encrypted"]
        # Who lacks a certificate in TLS 1.3 learns of it once the handshake is over, or that the connection is.
        refusals = (
            (other.path("ca", "crt"), own, "its certificate is not accepted: "),
            (made.path("ca", "crt"), "", ""),
        )
        for ca, shown, told in refusals:
            ((definition, secrets),) = read_bridges(written(ca, shown))
            async with bridge(cluster, broker, definition, secrets) as server:
                await eventually(lambda: server.status()["errors"] > 1)
                assert not server.status()["connected"]
                assert told in server.status()["last_error"]
        await close_clients()
