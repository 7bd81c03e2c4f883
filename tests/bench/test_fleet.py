"""The driver `fleet`, small, over a cluster in this process: devices' lives, accounts, the log's bytes by kind."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.bench.fleet import driver as fleet
from lexicast.bench.fleet.log_bytes import META, OTHER, PAYLOAD, SESSIONS, LogBytes, measure_log
from lexicast.bench.fleet.telemetry import NumberedAccount, Sensors, device_and_number, device_topic, numbered
from lexicast.bench.peers import targets
from lexicast.bench.stage.servers import Address
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, control_block, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.records import pack_record
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.maintenance import directory as maintenance
from lexicast.storage.store import Store

from ..support.mqtt_harness import Served, served
from ..support.session_rows import saved_session

START_US = 1_700_000_000_000_000


def test_account_tells_losses_repeats_and_order_apart() -> None:
    account = NumberedAccount()
    for device, number in ((1, 0), (1, 1), (2, 0), (1, 4), (1, 3), (1, 3), (2, 1)):
        account.take(device, number)
    assert (account.taken, account.missing, account.out_of_order, account.repeats) == (7, 1, 1, 1)
    assert account.lost(published=8) == 2  # device 1's number 2, and one after the last that came


def test_telemetry_is_the_same_for_a_seed_and_of_the_size_that_is_told() -> None:
    first, again, other = (Sensors(7, seed) for seed in (1, 1, 2))
    messages = [first.message(1e9 + at) for at in range(5)]
    assert messages == [again.message(1e9 + at) for at in range(5)]
    assert messages[0] != other.message(1e9)
    assert [device_and_number(message) for message in messages] == [(7, number) for number in range(5)]
    sizes = [len(Sensors(device, 1).message(1.7e9)) for device in range(500)]
    assert 270 < sum(sizes) / len(sizes) < 286


def publications(group: int, first: int, topics: Sequence[str], payloads: Sequence[bytes]) -> Block:
    runs = tuple(Run(0, index, 1, 0, 0, None, -1, 1) for index in range(len(topics)))
    meta = pack_meta(Meta(tuple(name.encode() for name in topics), runs, (), (), (), ()))
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    last = first + len(payloads) - 1
    return Block(group, 1, first, last, START_US + first, PUBLICATIONS, meta, lengths, b"".join(payloads))


def test_log_bytes_are_told_by_kind_and_add_up(tmp_path: Path) -> None:
    folder = tmp_path / "coordinator-0"
    options = StoreOptions(retention_s=0)
    with pytest.raises(UnavailableError, match="no coordinator"):
        measure_log(tmp_path)
    store = Store.open(folder, cluster_id="c", member="m", groups=2, options=options, clock=SystemClock())
    saved = pack_record(saved_session("device-0001", b"u" * 16, owner="broker-0", place=b"s" * 40))
    names = [device_topic(1, "telemetry"), device_topic(1, "status")]
    store.commit([publications(0, 0, names, [b"t" * 280, b"w" * 20]), control_block(0, 1, 2, START_US + 9, [saved])])
    store.commit([publications(1, 0, names[:1], [b"t" * 270])])
    store.close()
    found = measure_log(tmp_path)
    assert found.records == {PAYLOAD: 2, META: 2, "status": 1, "SessionSaved": 1}
    assert found.kinds[PAYLOAD] == 550
    assert found.kinds["SessionSaved"] > len(saved)
    parts = found.parts()
    assert set(parts) == {PAYLOAD, META, SESSIONS, OTHER}
    assert sum(parts.values()) == found.log <= found.store == maintenance.stats(folder).used_bytes
    assert all(size > 0 for size in parts.values())
    assert found.since(found) == LogBytes(0, 0, dict.fromkeys(found.kinds, 0), dict.fromkeys(found.records, 0))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """What the driver takes for a started lexicast. A process may open a store only once, so the log is not measured
    here, and the history is asked for without a command line."""
    with served() as there:

        @contextmanager
        def running(names: Sequence[str], missing: Any) -> Iterator[dict[str, Any]]:
            address, pids = Address("127.0.0.1", there.port), {"brokers": [os.getpid()]}
            log = tmp_path / "lexicast.log"
            yield {"lexicast": SimpleNamespace(address=address, pids=pids, log=log, require_alive=lambda: None)}

        async def history(hour: fleet.Hour) -> NumberedAccount:
            return await asyncio.to_thread(there.run, read_history(there))

        monkeypatch.setattr(targets, "running", running)
        monkeypatch.setattr(fleet, "measure_log", lambda folder: LogBytes(4096, 8192, {META: 100.0}, {META: 1}))
        monkeypatch.setattr(fleet, "SAVES_S", 0.0)
        monkeypatch.setattr(fleet.Hour, "_history", history)
        yield there


async def read_history(there: Served) -> NumberedAccount:
    coordination = there.cluster.coordination

    async def resolve() -> list[Endpoint]:
        members, info = await coordination.members(-1, 0), await coordination.cluster()
        return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

    account = NumberedAccount()
    async with Client(resolve) as bus:
        async for message in bus.history("fleet/+/+/telemetry"):
            account.take(*device_and_number(message.payload))
    return account


def test_fleet_of_devices_that_come_and_go_gets_everything(cluster: Served, tmp_path: Path) -> None:
    options = ["--devices", "15", "--seconds", "4", "--period", "0.2", "--connected", "1", "--commands", "30"]
    file = tmp_path / "fleet.json"
    assert fleet.main([*options, "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    figures, counted = told["figures"], told["samples"]["told"]
    assert figures["fleet_complete"] == figures["fleet_ordered"] == figures["fleet_history_complete"] == 1
    assert figures["fleet_repeats"] == 0
    assert counted["published"] == figures["fleet_messages"] > 50
    assert counted["connects"] > 15 < counted["resumed"] + 15  # they left, and their sessions were there
    assert counted["wills"] > 0
    parts = ("fleet_telemetry_payload_bytes", "fleet_telemetry_meta_bytes", "fleet_session_bytes", "fleet_other_bytes")
    assert figures["fleet_log_bytes"] == sum(figures[part] for part in parts) == 0


def test_fleet_that_loses_something_is_a_failed_run(cluster: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    take = NumberedAccount.take

    def careless(account: NumberedAccount, device: int, number: int) -> None:
        for _ in range(0 if number == 1 else 2 if number == 2 else 1):
            take(account, device, number)

    monkeypatch.setattr(NumberedAccount, "take", careless)
    monkeypatch.setattr(fleet, "SETTLE_TIMEOUT_S", 5.0)
    assert fleet.main(["--devices", "2", "--seconds", "1.5", "--period", "0.2", "--commands", "1"]) == 1


def test_fleet_measures_lexicast_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.main(["--targets", "mosquitto"]) == 1
    assert "the log that is measured is lexicast's" in capsys.readouterr().err


def test_numbered_messages_of_others_are_refused() -> None:
    assert device_and_number(numbered(12, 3)) == (12, 3)
    with pytest.raises(ValueError, match="no message of a device"):
        device_and_number(b'{"n":1}')
