"""ray_cluster.yaml and ray_cluster.aws.yaml: what Ray's own schema and checks say, and that they agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]
FILES = ("ray_cluster.yaml", "ray_cluster.aws.yaml")


def read(name: str) -> dict[str, Any]:
    """A cluster's file."""
    told: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return told


def workers(told: dict[str, Any]) -> int:
    """How many workers Ray starts from a prepared configuration, without any load."""
    return sum([each["min_workers"] for each in told["available_node_types"].values()])


@pytest.mark.parametrize("name", FILES)
def test_ray_takes_it(name: str) -> None:
    prepared = prepare_config(read(name))
    validate_config(prepared)
    up = " ".join(prepared["head_start_ray_commands"])
    assert set(re.findall(r"--nodes (\d+)", up)) == {str(1 + workers(prepared))}
    assert prepared["max_workers"] == workers(prepared)


@pytest.mark.parametrize("wrong", [{"auth": {"user": "lexicast"}}, {"start_commands": []}, {"max_workers": "2"}])
def test_ray_refuses_what_it_does_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"'user' was unexpected|'start_commands' was|is not of type 'integer'"):
        validate_config(prepare_config(read("ray_cluster.aws.yaml")) | wrong)


def test_both_start_ray_and_lexicast_alike() -> None:
    ours, on_aws = map(read, FILES)
    for key in ("head_start_ray_commands", "worker_start_ray_commands", "cluster_name"):
        assert ours[key] == on_aws[key], key
    assert on_aws["file_mounts"].items() >= ours["file_mounts"].items()


def test_nodes_agree_about_when_one_is_gone() -> None:
    for name in FILES:
        told = read(name)
        head, worker = (
            dict(re.findall(r"(RAY_(?:health|grpc|gcs_rpc|AUTH|worker)\w+)=(\S+?);?\s", " ".join(told[key])))
            for key in ("head_start_ray_commands", "worker_start_ray_commands")
        )
        assert head == worker
        assert head["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize("name", FILES)
def test_the_autoscaler_gets_its_configuration_last(name: str) -> None:
    """Told to have fewer workers before it knows which ones are gone, it would end any of them."""
    told = read(name)
    setup = told["head_setup_commands"]
    assert setup[-1].startswith("cp ~/ray_bootstrap_config.yaml ")
    (read_by_ray,) = re.findall(r"--autoscaling-config=(\S+)", " ".join(told["head_start_ray_commands"]))
    assert setup[-1].endswith(f" {read_by_ray}")
    if told["provider"]["type"] == "local":
        assert setup[-2] == "ray get-worker-ips ~/ray_bootstrap_config.yaml"
