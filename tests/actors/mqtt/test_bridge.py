"""Another site's Mosquitto as a bridge to this broker: connected, both ways, without loops."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lexicast.bench.stage.ports import free_port

from ...support.harness import eventually
from ...support.mqtt_harness import HOST, Raw, Served, close_clients, served, unique

pytestmark = pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not installed")

# What Mosquitto can be told to speak: the protocol's version, and whether it says that it is a bridge.
SPOKEN = pytest.mark.parametrize(
    "site", [("mqttv31", True), ("mqttv311", True), ("mqttv311", False), ("mqttv50", True)], indirect=True, ids=str
)
SAID = pytest.mark.parametrize(
    "site", [("mqttv31", True), ("mqttv311", True), ("mqttv50", True)], indirect=True, ids=str
)
CONFIG = """
listener {own} {host}
allow_anonymous true
connection site
address {host}:{port}
bridge_protocol_version {version}
try_private {private}
topic # both 1
restart_timeout 1
log_type all
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
async def port(cluster: Served) -> AsyncIterator[int]:
    yield cluster.port
    await close_clients()


@pytest.fixture
def site(request: pytest.FixtureRequest, cluster: Served, tmp_path: Path) -> Iterator[int]:
    """A Mosquitto whose bridge leads here; its own port."""
    version, private = request.param
    own, file = free_port(), tmp_path / "mosquitto.conf"
    text = CONFIG.format(own=own, host=HOST, port=cluster.port, version=version, private=str(private).lower())
    file.write_text(text)
    with (tmp_path / "log").open("w") as told:
        process = subprocess.Popen(["mosquitto", "-c", str(file)], stdout=told, stderr=told)
        try:
            yield own
        finally:
            process.terminate()
            process.wait(30)
    assert "refused" not in (tmp_path / "log").read_text()


async def connected(cluster: Served, own: int) -> Raw:
    """A client of the site, once its bridge stands."""
    sessions = cluster.broker().mqtt.sessions
    await eventually(
        lambda: any("site" in name and owner.session.subscriptions for name, owner in list(sessions.owners.items()))
    )
    for _ in range(100):
        try:
            return await Raw.connect(own)
        except OSError:
            await asyncio.sleep(0.1)  # it may still be on its way up
    raise AssertionError("mosquitto does not listen")


@SPOKEN
async def test_a_mosquitto_bridge_works_both_ways(cluster: Served, port: int, site: int) -> None:
    root = unique("bridged")
    there, here = await connected(cluster, site), await Raw.connect(port)
    await there.subscribe(f"{root}/down", qos=1)
    await here.subscribe(f"{root}/up", qos=1)
    for number in range(20):
        await there.publish(f"{root}/up", b"up %d" % number, 1)
        await here.publish(f"{root}/down", b"down %d" % number, 1)
    assert {m.payload for m in await here.messages(20)} == {b"up %d" % number for number in range(20)}
    assert {m.payload for m in await there.messages(20)} == {b"down %d" % number for number in range(20)}
    # Its notifications on $SYS/broker/connection/.../state: the will, and "1".
    assert cluster.broker().mqtt.status()["dropped_dollar"] >= 2


@SAID
async def test_a_bridge_that_says_so_gets_no_echo_and_what_is_retained(cluster: Served, port: int, site: int) -> None:
    root = unique("bridged")
    there, here = await connected(cluster, site), await Raw.connect(port)
    await there.subscribe(f"{root}/#", qos=1)
    await here.subscribe(f"{root}/#", qos=1)
    await there.publish(f"{root}/up", b"up", 1)
    assert [m.payload for m in await here.messages(1)] == [b"up"]
    await here.publish(f"{root}/down", b"down", 1, retain=True)
    assert [m.payload for m in await here.messages(1)] == [b"down"]
    assert [m.payload for m in await there.messages(2)] == [b"up", b"down"]
    late = await Raw.connect(site)
    await late.subscribe(f"{root}/down")
    assert [(m.payload, m.retain) for m in await late.messages(1)] == [(b"down", True)]
    await here.publish(f"{root}/down", b"", 1, retain=True)
