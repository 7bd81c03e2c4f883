"""The wires that the load generators speak, as parameters of tests."""

from __future__ import annotations

import pytest

from lexicast.bench.peers.wire import MqttWire, NatsWire

WIRES = [pytest.param(MqttWire(4), id="3.1.1"), pytest.param(MqttWire(5), id="5"), pytest.param(NatsWire(), id="nats")]
