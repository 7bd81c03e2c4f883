"""What a broker's session state costs: the sessions that are loaded, and what is made of what they tell."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from lexicast.bench.peers import targets
from lexicast.bench.peers.loadgen import DeliveryError
from lexicast.bench.peers.session_opening import SessionSpec, open_sessions
from lexicast.bench.peers.wire import MqttWire
from lexicast.bench.replication import session_state
from lexicast.bench.replication.driver import parse
from lexicast.bench.replication.session_crowd import (
    ALL,
    FEW,
    PAYLOAD_BYTES,
    SHAPES,
    SILENT,
    Sessions,
    SteadyCrowd,
    topic_of,
)
from lexicast.bench.replication.session_state import TOLD, TURNS, UNTOLD, costs, measure_session_state
from lexicast.bench.report import DriverReport, Steps
from lexicast.bench.stage.ports import free_port
from lexicast.bench.stage.servers import Address, Target
from lexicast.cluster.errors import PeerError

COUNT = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Target]:
    """Any broker will do here."""
    with targets.running(["mosquitto"], lambda name, what: pytest.fail(what)) as running:
        yield running["mosquitto"]


@pytest.fixture
def sessions(broker: Target) -> Iterator[Sessions]:
    made = Sessions(broker.address, COUNT)
    yield made
    made.close()


def test_each_session_gets_its_messages_at_the_rate(sessions: Sessions) -> None:
    delivered = sessions.run(ALL, 200, 0.2)
    assert delivered.messages == 40
    assert delivered.seconds >= 0.2
    assert sessions.got == [2] * COUNT


def test_few_get_messages_and_the_others_are_idle(sessions: Sessions) -> None:
    assert sessions.run(FEW, 200, 0.2).messages == 40
    assert sessions.got == [20, 20] + [0] * (COUNT - 2)


def test_the_silent_get_no_more_than_they_acknowledge_until_they_do(sessions: Sessions) -> None:
    sessions.run(SILENT, 400, 0.2)
    assert sessions.got[:-2] == [4] * (COUNT - 2)
    assert max(sessions.got[-2:]) <= 1
    sessions.settle()
    assert sessions.got == [4] * COUNT


def test_a_message_that_is_not_the_next_one_is_an_error(sessions: Sessions, broker: Target) -> None:
    wire = MqttWire()
    (other,) = open_sessions(broker.address, wire, [SessionSpec("other")])
    other.send(wire.publish(topic_of(3), (7).to_bytes(8, "big") + bytes(PAYLOAD_BYTES - 8), 0))
    with pytest.raises(DeliveryError, match="state/000003 expected message 0 and got"):
        sessions.run(ALL, 400, 0.2)
    other.close()


def test_what_goes_wrong_in_the_sessions_process_is_told() -> None:
    with pytest.raises(PeerError, match="cannot connect"):
        SteadyCrowd(Address("127.0.0.1", free_port()), 1)


def test_a_broker_that_is_gone_ends_the_run() -> None:
    with targets.running(["mosquitto"], lambda name, what: pytest.fail(what)) as running:
        crowd = SteadyCrowd(running["mosquitto"].address, 2)
    with pytest.raises(PeerError, match="the broker closed a connection"):
        crowd.run(ALL, 10, 0.1)
    crowd.close()


def test_the_cost_is_of_the_same_round() -> None:
    def sample(cpu_s: float, messages: int) -> dict[str, float]:
        return {"brokers": cpu_s, "messages": messages}

    samples = {TOLD: [sample(1.1, 10), sample(4.2, 20)], UNTOLD: [sample(1.0, 10), sample(2.0, 10)]}
    assert costs(samples, "brokers") == pytest.approx([0.1, 0.05])


def measured() -> DriverReport:
    options = argparse.Namespace(state_sessions=10, state_rate=200, state_seconds=0.1, state_rounds=1, quick=True)
    report = DriverReport("replication", options, Console(file=io.StringIO()))
    measure_session_state(report, Steps(report.console, 1))
    return report


def test_both_clusters_are_measured_under_each_shape(broker: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, str] = {}
    with targets.running(["mosquitto"], lambda name, what: pytest.fail(what)) as running:
        brokers = [broker, running["mosquitto"]]

        def start(folder: Path, config: str, name: str) -> Target:
            one, pids = brokers[len(started)], brokers[len(started)].pids["brokers"]
            started[name] = config
            made = Target(name, one.address, one.process, one.log, {"brokers": pids, "coordinators": pids})
            monkeypatch.setattr(made, "stop", lambda: None)
            return made

        monkeypatch.setattr(session_state, "start_lexicast", start)
        report = measured()
    assert list(started) == [TOLD, UNTOLD]
    assert started[UNTOLD] != started[TOLD] == ""
    for shape in SHAPES:
        for name in (TOLD, UNTOLD):
            (sample,) = report.samples["session_state"][shape][name]
            assert sample["messages"] == TURNS * 20
            assert sample["brokers"] > 0
        assert report.figures[f"quasi_active_cpu_{shape}"] is not None
    assert report.figures["quasi_active_cpu"] == max(
        report.figures[f"quasi_active_cpu_{shape}"] or 0 for shape in SHAPES
    )


def test_quick_has_fewer_sessions_and_none_is_none() -> None:
    quick, full = parse(["--quick"]), parse([])
    assert (quick.state_sessions, full.state_sessions, full.state_rate) == (1_000, 10_000, 5_000)
    assert quick.state_seconds < full.state_seconds
    assert parse(["--state-sessions", "0"]).state_sessions == 0
