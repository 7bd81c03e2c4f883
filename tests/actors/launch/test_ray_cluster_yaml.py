"""ray_cluster.yaml: it holds what was measured, and Ray takes it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def test_ray_cluster_yaml_holds_what_was_measured() -> None:
    text = (ROOT / "ray_cluster.yaml").read_text()
    yaml: Any = import_module("yaml")  # Ray's; it has no types
    config = yaml.safe_load(text)
    assert config["provider"]["type"] == "local"
    assert config["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"])
    assert set(config["auth"]) == {"ssh_user", "ssh_private_key"}
    head, worker = (" ".join(config[f"{role}_start_ray_commands"]) for role in ("head", "worker"))
    assert "RAY_gcs_storage=rocksdb RAY_gcs_storage_path=" in head
    assert "RAY_UP_enable_autoscaler_v2=0" in head
    assert "--autoscaling-config=~/lexicast/ray.yaml" in head
    assert "lexicast up --address auto" in head
    assert "ray start --address=$RAY_HEAD_IP:6379" in worker
    for start in (head, worker):
        assert start.index("export RAY_AUTH_MODE=token") < start.index("ray start")
    assert head.count("RAY_AUTH_MODE=token") == 3  # Ray's, and the service's in both its forms
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"]
    checks = {
        word for word in worker.replace(";", "").split() if word.startswith(("RAY_health", "RAY_grpc", "RAY_gcs_rpc"))
    }
    assert len(checks) == 9
    assert checks <= set(head.replace(";", "").split())  # detection must be the same on all nodes


def test_ray_itself_accepts_ray_cluster_yaml() -> None:
    program = (
        "import sys, yaml\n"
        "from ray.autoscaler._private.util import prepare_config, validate_config\n"
        "validate_config(prepare_config(yaml.safe_load(sys.stdin)))\n"
    )
    text = (ROOT / "ray_cluster.yaml").read_text()
    subprocess.run([sys.executable, "-c", program], input=text, text=True, check=True)
