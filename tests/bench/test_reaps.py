"""The REAPS driver: its worlds, baselines and optimum; a quick run with its figures, pictures and ties."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.bench.reaps import driver, gaps, scale
from lexicast.bench.reaps.baselines import randomly_assigned, retrieved_bytes_s, unpacked
from lexicast.bench.reaps.churn import churned
from lexicast.bench.reaps.failures import failures
from lexicast.bench.reaps.optimum import InfeasibleError, least_maximum, least_sum
from lexicast.bench.reaps.overheads import Ratios, ratios
from lexicast.bench.reaps.population import WorldSetting, populated
from lexicast.bench.reaps.replication_run import METHODS, BrokerHour, policy
from lexicast.ft.assignment import assigned
from lexicast.ft.network import BrokerNetwork
from lexicast.ft.objectives import NONE, loads_bytes_s, presubscribed, uncovered

SMALL = WorldSetting(brokers=9, clusters=3, channels=5, subscribers=300)


def feasible(network: BrokerNetwork, local: np.ndarray, remote: np.ndarray) -> bool:
    """Equation 7."""
    return bool((loads_bytes_s(network, local, remote) < network.capacity_bytes_s).all())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1_000), st.sampled_from([3.0, 4.0, math.inf]), st.sampled_from([0.0, 0.9]))
def test_the_optimum_is_what_trying_everything_gives(seed: int, headroom: float, locality: float) -> None:
    small = WorldSetting(
        4, 2, channels=2, subscriptions_a_channel=4, subscribers=40, headroom=headroom, locality=locality
    )
    network = populated(small, seed).network
    none = np.full(4, NONE)
    locals_ = [np.array(each) for each in itertools.product(*[network.near(broker) for broker in range(4)])]
    sums = [int(presubscribed(network, each).sum()) for each in locals_ if feasible(network, each, none)]
    if not sums:
        with pytest.raises(InfeasibleError):
            least_sum(network, small.subscriptions)
        return
    assert least_sum(network, small.subscriptions) == min(sums)
    local = assigned(network).local
    remotes = [np.array(each) for each in itertools.product(*[network.far(broker) for broker in range(4)])]
    most = [int(uncovered(network, local, each).max()) for each in remotes if feasible(network, local, each)]
    if most:
        assert least_maximum(network, small.subscriptions, local) == min(most)
    else:
        with pytest.raises(InfeasibleError):
            least_maximum(network, small.subscriptions, local)


def test_a_world_is_as_the_paper_says_and_the_same_from_its_seed() -> None:
    world, again = populated(WorldSetting(), 7), populated(WorldSetting(), 7)
    network = world.network
    assert (len(network), len(set(network.locations)), len(world.rate_bytes_s)) == (100, 3, 1_000)
    assert world.holdings.subscribers.sum() == 100_000
    assert 10 <= world.period_s.min() <= world.period_s.max() <= 600
    assert len(np.unique(world.period_s)) == 100
    assert 10e3 <= world.result_bytes.min() <= world.result_bytes.max() <= 10e6
    assert (network.subscriptions == again.network.subscriptions).all()


def test_locality_is_what_brokers_of_a_cluster_have_in_common() -> None:
    def in_common(locality: float) -> tuple[float, float]:
        world = populated(WorldSetting(locality=locality), 1)
        held = unpacked(world.network.subscriptions, 1_000)
        both = held @ held.T / held.sum(axis=1)
        same = world.network.place[:, None] == world.network.place
        others = ~np.eye(len(held), dtype=bool)
        return float(both[same & others].mean()), float(both[~same].mean())

    near, far = in_common(0.0)
    assert near == pytest.approx(far, rel=0.05)
    near, far = in_common(1.0)
    assert near > 2 * far


def test_random_backups_are_where_they_may_be_and_have_room() -> None:
    network = populated(SMALL._replace(headroom=6.0), 1).network
    backups = randomly_assigned(network, np.random.default_rng(1))
    assert (network.place[backups.local] == network.place).all()
    assert (network.place[backups.remote] != network.place).all()
    assert (backups.local != np.arange(9)).all()
    assert feasible(network, backups.local, backups.remote) or backups.over_capacity


def test_active_replication_retrieves_what_reaps_does_and_its_backups_share() -> None:
    world = populated(SMALL, 1)
    network, rates = world.network, world.rate_bytes_s
    backups = assigned(network)
    reaps, active = retrieved_bytes_s(network, rates), retrieved_bytes_s(network, rates, backups.local, backups.remote)
    assert (active >= reaps).all()
    held = unpacked(network.subscriptions, SMALL.subscriptions)
    assert reaps == pytest.approx([sum(rates[np.flatnonzero(row)]) for row in held])


def test_a_tie_is_counted_and_is_no_ratio() -> None:
    assert ratios([(1.0, 2.0), (0.0, 4.0), (0.0, 0.0)]) == Ratios(0.5, 0.0, 1, 0)
    assert ratios([(1.0, 0.0)]) == Ratios(None, None, 0, 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_slower_pace_costs_less_and_repeats_more(method: str) -> None:
    world = populated(SMALL._replace(subscribers=2_000), 3)
    hour = BrokerHour(world, 0, 1_200.0, np.random.default_rng(1))
    fast, slow = (hour.replicated(policy(method, seconds, hour.rate_bytes_s)) for seconds in (5.0, 100.0))
    assert fast.messages_per_s > slow.messages_per_s
    assert fast.positions_per_s > slow.positions_per_s
    assert fast.retrieved_bytes < slow.retrieved_bytes
    assert fast.delivered_bytes >= fast.retrieved_bytes


def test_a_whole_cluster_fails_over_to_remote_backups_and_one_broker_to_its_local_one() -> None:
    world = populated(WorldSetting(), 1)
    one, *_, whole = failures([(world, assigned(world.network, improve=False))], 1)
    assert (one.failed, one.remote, one.remote_s) == (1, 0, 0)
    assert (whole.failed, whole.remote, whole.local_s) == (34, 34, 0)
    assert whole.retrieved_bytes > one.retrieved_bytes
    assert whole.recovery_s > one.recovery_s > 1


def test_a_local_backup_with_more_in_common_changes_less() -> None:
    network = populated(WorldSetting(), 1).network
    ours = churned(network, 1_000, assigned(network, improve=False), np.random.default_rng(1))
    random = randomly_assigned(network, np.random.default_rng(1))
    theirs = churned(network, 1_000, random, np.random.default_rng(1))
    assert 0 < ours.backup < theirs.backup


def test_a_quick_run_has_every_figure_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(driver, "QUICK_HORIZON_S", 700.0)
    monkeypatch.setattr(driver, "settings", lambda quick: [SMALL, SMALL._replace(locality=0.0, headroom=math.inf)])
    monkeypatch.setattr(gaps, "LOCALITIES", (0.5,))
    monkeypatch.setattr(scale, "BROKERS", 30)
    monkeypatch.setattr(scale, "CHANNELS", 50)
    monkeypatch.setattr(scale, "SUBSCRIBERS", (100, 1_000))
    file, folder = tmp_path / "r.json", tmp_path / "pictures"
    assert driver.main(["--quick", "--json", str(file), "--picture", str(folder)]) == 0
    told = json.loads(file.read_text(), parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    figures = told["figures"]
    assert told["mode"] == "quick"
    assert figures["ar_vs_reaps_min"] >= 1
    assert figures["assign_1000_s"] > 0
    assert 0 <= figures["lcs_gap_mean"] <= figures["lcs_gap"]
    assert 0 <= figures["mmcs_gap_mean"] <= figures["mmcs_gap"]
    assert {"lcs_vs_rnd", "mmcs_vs_rnd", "mmcs_vs_rnd_ties", "threshold_vs_periodic"} <= figures.keys()
    assert {"settings", "replication", "failures", "gaps", "scale"} <= told["samples"].keys()
    drawn = sorted([path.name for path in folder.iterdir()])
    assert drawn == [f"figure_{key}.png" for key in ("4a", "4b", "4c", "4d", "5a", "5b")]


def test_without_scipy_the_gaps_are_null_and_the_rest_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    file = tmp_path / "r.json"
    assert driver.main(["--quick", "--only", "gaps", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())["figures"]
    assert figures["lcs_gap"] is figures["mmcs_gap"] is None
    assert "ar_vs_reaps_min" not in figures
    assert "scipy not found: pip install" in capsys.readouterr().out
    assert driver.main(["--quick", "--only", "gaps", "--require-peers"]) == 3


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--only", "gaps,other"]])
def test_a_wrong_option_is_code_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        driver.parse(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err
