"""What comes for Prometheus and Grafana, as Debian's promtool and Prometheus' parser see it."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

FOLDER = resources.files("lexicast.actors.console").joinpath("prometheus")
PROMTOOL = shutil.which("promtool") or ""
with_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not here: scripts/debian promtool=prometheus")

# What each alert is to say of series that are wrong, and of sound ones.
RULES_TEST = """
rule_files: [alerts.yml]
evaluation_interval: 10s
tests:
  - interval: 10s
    input_series:
      - series: 'lexicast_ready{instance="a:1"}'
        values: '1x6 0x12'
      - series: 'up{job="lexicast",instance="b:1"}'
        values: '1x3 0x15'
      - series: 'lexicast_failovers_total{instance="a:1",actor="coordinator-1"}'
        values: '0x6 50x12'
      - series: 'lexicast_store_full_in_seconds{instance="a:1",actor="coordinator-0"}'
        values: '900000x18'
    alert_rule_test:
      - eval_time: 50s
        alertname: LexicastNodeNotReady
        exp_alerts: []
      - eval_time: 3m
        alertname: LexicastNodeNotReady
        exp_alerts:
          - exp_labels: {severity: critical, instance: "a:1"}
            exp_annotations:
              summary: "a:1 does not serve"
              description: "What is published there may wait, or clients are not let in. Its /health/ready says why."
      - eval_time: 3m
        alertname: LexicastNodeUnreachable
        exp_alerts:
          - exp_labels: {severity: critical, job: lexicast, instance: "b:1"}
            exp_annotations:
              summary: "b:1 does not answer Prometheus"
              description: "Its node is away, or its console: what else is wrong there nothing tells meanwhile."
      - eval_time: 3m
        alertname: LexicastFailovers
        exp_alerts:
          - exp_labels: {severity: info, instance: "a:1", actor: coordinator-1}
            exp_annotations:
              summary: "coordinator-1 leads topic groups that others led"
              description: >-
                A coordinator was lost, its disk was slow, or its node was drained; the page's events say which.
      - eval_time: 3m
        alertname: LexicastStoreFullSoon
        exp_alerts: []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("alerts.yml", "scrape.yml"):
        (tmp_path / name).write_text(FOLDER.joinpath(name).read_text())
    (tmp_path / "lexicast.token").write_text("x")
    return tmp_path


def promtool(folder: Path, *arguments: str) -> str:
    """What it says; it must be content."""
    done = subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@with_promtool
def test_the_rules_are_rules(folder: Path) -> None:
    assert "SUCCESS" in promtool(folder, "check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool(folder, "check", "config", "scrape.yml")


@with_promtool
def test_alerts_come_when_they_should(folder: Path) -> None:
    (folder / "test.yml").write_text(RULES_TEST)
    assert "SUCCESS" in promtool(folder, "test", "rules", "test.yml")


def test_the_dashboard_can_be_imported() -> None:
    dashboard: dict[str, Any] = json.loads(FOLDER.joinpath("grafana.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
