"""`lexicast recover` on the stores of a cluster that is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lexicast.actors.cli.main import command_line
from lexicast.actors.coordination.offline import recover_registry, told_groups
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.recovery import EPOCH_GAP
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.registry import FILE
from lexicast.storage.store import Store

BOTH = ("coordinator-0", "coordinator-1")
# Which coordinators each group's leader has counted with: the last one is led by the first alone.
COUNTED = {0: BOTH, 1: BOTH, 2: BOTH[:1]}


def stores(folder: Path, *names: str) -> Config:
    """Stores of a cluster of three groups, all led by the first; the second has promised a newer epoch."""
    config = Config().replaced(node__data_dir=str(folder))
    for name in names:
        options = StoreOptions(**config.storage.options())
        store = Store.open(
            folder / name, cluster_id="c" * 32, member=name, groups=3, options=options, clock=SystemClock()
        )
        if name == BOTH[0]:
            store.count_with({group: (4, members) for group, members in COUNTED.items()})
        else:
            store.promise({0: 4, 1: 6})
        store.close()
    return config


def leaders(told: dict[str, Any]) -> dict[int, tuple[int, str]]:
    return {group: (epoch, leader) for group, (epoch, leader, _) in told["group_states"].items()}


async def test_with_all_stores_everything_is_certain(tmp_path: Path) -> None:
    told = await recover_registry(stores(tmp_path, *BOTH), None, give_up=False)
    assert told["unknown"] == {}
    assert {group: epoch for group, (epoch, _) in leaders(told).items()} == {0: 5, 1: 7, 2: 5}
    assert told["cluster_id"] == "c" * 32
    assert [name for name, _, _ in told_groups(told)] == [*BOTH]
    again = await recover_registry(Config().replaced(node__data_dir=str(tmp_path)), None, give_up=False)
    assert leaders(again) == leaders(told)  # there is nothing to do


async def test_what_waits_for_a_missing_store_is_given_up_by_the_operator_alone(tmp_path: Path) -> None:
    config = stores(tmp_path, BOTH[0])
    told = await recover_registry(config, 2, give_up=False)
    assert told["unknown"] == {0: [BOTH[1]], 1: [BOTH[1]]}
    assert leaders(told) == {0: (0, ""), 1: (0, ""), 2: (5, BOTH[0])}
    told = await recover_registry(config, None, give_up=True)
    assert told["unknown"] == {}
    assert leaders(told) == {0: (4 + EPOCH_GAP, BOTH[0]), 1: (4 + EPOCH_GAP, BOTH[0]), 2: (5, BOTH[0])}


async def test_two_copies_of_everything_need_no_decision(tmp_path: Path) -> None:
    config = stores(tmp_path, BOTH[0]).replaced(cluster__copies=2, cluster__min_copies=2)
    assert (await recover_registry(config, None, give_up=False))["unknown"].keys() == {0, 1}
    (tmp_path / "coordination" / FILE).unlink()
    assert (await recover_registry(config, 2, give_up=False))["unknown"] == {}


async def test_a_registry_that_cannot_be_read_is_moved_aside(tmp_path: Path) -> None:
    config = stores(tmp_path, *BOTH)
    for number in (1, 2):
        (tmp_path / "coordination").mkdir(exist_ok=True)
        (tmp_path / "coordination" / FILE).write_bytes(b"\1" * 20_000)
        told = await recover_registry(config, None, give_up=False)
        assert told["moved"] == str(tmp_path / f"coordination.before-recovery-{number}")
        assert (Path(told["moved"]) / FILE).stat().st_size == 20_000
        assert told["unknown"] == {}


async def test_without_a_store_there_is_nothing_to_recover(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no store below"):
        await recover_registry(Config().replaced(node__data_dir=str(tmp_path)), None, give_up=True)


def test_the_command_tells_it(tmp_path: Path) -> None:
    stores(tmp_path, BOTH[0])
    run = CliRunner().invoke(command_line(["recover", "down"]), ["recover", "--data-dir", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert "cluster cccccccc: 1 of 3 topic groups have a leader" in run.output
    assert "2 topic groups wait for coordinator-1, which may have what nobody else has: start it" in run.output
    arguments = ["recover", "--accept-loss", "--json", "--data-dir", str(tmp_path)]
    run = CliRunner().invoke(command_line(["recover", "down"]), arguments)
    assert json.loads(run.stdout)["unknown"] == {}
