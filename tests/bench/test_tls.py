"""The load generator over TLS: what it counts without, it counts with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.bench.peers.loadgen import Load, OpenLoad
from lexicast.bench.peers.session_opening import SessionSpec, close_all, open_sessions
from lexicast.bench.peers.wire import MqttWire
from lexicast.bench.stage.servers import Address
from lexicast.cluster.errors import UnavailableError

from ..support.certificates import authority, served_by_tls, tls_port
from ..support.mqtt_harness import HOST


def test_a_load_arrives_whole_and_in_order(tmp_path: Path) -> None:
    made = authority(tmp_path, "other")
    with served_by_tls(made) as running:
        address = Address(HOST, tls_port(running), cafile=str(made.path("ca", "crt")))
        load = OpenLoad(address, MqttWire(), Load("tls", 5, 140, verify=True))
        try:
            result = load.run(30.0, 1_000, messages_max=20_000)
        finally:
            load.close()
        assert (result.sent, result.deliveries, result.lost) == (20_000, 100_000, 0)
        assert running.broker().mqtt.status()["tls"]["failed"] == {}


def test_who_is_not_trusted_is_told(tmp_path: Path) -> None:
    made, other = authority(tmp_path / "a"), authority(tmp_path / "b")
    with served_by_tls(made) as running:
        wrong = Address(HOST, tls_port(running), cafile=str(other.path("ca", "crt")))
        with pytest.raises(UnavailableError, match=r"no TLS with 127\.0\.0\.1"):
            open_sessions(wrong, MqttWire(), [SessionSpec("a")])
        right = Address(HOST, tls_port(running), cafile=str(made.path("ca", "crt")))
        close_all(open_sessions(right, MqttWire(), [SessionSpec("a", "t")]))
