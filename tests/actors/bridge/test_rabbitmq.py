"""Bridges to RabbitMQ, whose plug-in speaks MQTT 3.1.1: both ways, in order, without loops, through a restart."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.bench.stage.ports import free_port

from ...support.bridge_harness import OtherBroker, bridge, client_of, definition
from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import HOST, Raw

# Debian's own in the PATH becomes the user rabbitmq, whose files are elsewhere.
EXECUTABLE = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin")
EPMD = shutil.which("epmd")
pytestmark = [
    pytest.mark.skipif(EXECUTABLE is None or EPMD is None, reason="rabbitmq-server is not installed"),
    pytest.mark.drill,  # an Erlang machine that begins twice: 10 s of a core
]

CONFIG = """
listeners.tcp = none
mqtt.listeners.tcp.1 = {host}:{port}
mqtt.allow_anonymous = true
log.console = true
log.console.level = warning
"""
FIELDS = "protocol = '3.1.1'"


class RabbitMq(OtherBroker):
    """One node, all of it in `folder` and on loopback; `mapper`: the port of its port mapper, which is there already:
    else it begins one that outlives it."""

    def __init__(self, folder: Path, mapper: int) -> None:
        assert EXECUTABLE is not None
        port = free_port()
        config, plugins = folder / "rabbitmq.conf", folder / "enabled_plugins"
        config.write_text(CONFIG.format(host=HOST, port=port))
        plugins.write_text("[rabbitmq_mqtt].")
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": "bridged@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        super().__init__([EXECUTABLE], folder / "rabbitmq.log", port, environment)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[RabbitMq]:
    assert EPMD is not None
    port = free_port()
    mapper = OtherBroker([EPMD, "-address", HOST, "-port", str(port)], tmp_path / "epmd.log", port)
    await mapper.start()
    running = RabbitMq(tmp_path, port)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()
        await mapper.stop()


async def test_both_ways_in_order_and_through_a_restart(here: tuple[Cluster, BrokerServer], there: RabbitMq) -> None:
    """One story, since a node takes seconds to begin."""
    cluster, broker = here
    topics = "[{ filter = 'shared/#', direction = 'both' }]"
    far = await Raw.connect(there.port, "far", version=4, clean=False)
    await far.subscribe("shared/#", qos=1)
    async with (
        bridge(cluster, broker, definition(there.port, topics, FIELDS)) as server,
        client_of(cluster, broker) as bus,
        bus.subscribe("shared/#") as local,
    ):
        await eventually(lambda: server.status()["connected"] and len(broker.engine.shares) == 1)
        for n in range(100):
            await bus.publish("shared/near", b"near %d" % n)
            await far.publish("shared/far", b"far %d" % n, 1)
        near = [(await anext(local)).payload for _ in range(200)]
        distant = [each.payload for each in await far.messages(200)]
        for got in (near, distant):
            for whose in (b"near %d", b"far %d"):
                wanted = [whose % n for n in range(100)]
                assert [each for each in got if each in set(wanted)] == wanted
        # All of its own have come back by now, or would come before this.
        await far.publish("shared/end", b"", 1)
        assert (await anext(local)).topic == "shared/end"
        await eventually(lambda: server.status()["looped_in"] == 100)
        assert [each.topic for each in await far.messages(1)] == ["shared/end"]

        await there.stop()
        await bus.publish_many([("shared/near", b"later %d" % n) for n in range(200)])
        await there.start()
        await eventually(lambda: server.status()["sent"] == 300)
        far = await Raw.connect(there.port, "far", version=4, clean=False)
        again: Counter[bytes] = Counter()
        while len(again) < 200:
            again[(await far.messages(1))[0].payload] += 1
        assert set(again) == {b"later %d" % n for n in range(200)}
        await far.publish("shared/end", b"over", 1)
        while (message := await anext(local)).topic != "shared/end":
            assert message.payload in again
