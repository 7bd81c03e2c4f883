"""docs/http.md tells of every metric, and of every path that is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lexicast.actors.console.metric_rows import ANY, METRICS, NODE, MetricRow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/http.md").read_text()
CONSOLE = ROOT / "actors/console"


def told(row: MetricRow) -> str:
    """A metric as a row of the page's table."""
    of = {ANY: "every actor", NODE: "the node"}.get(row.of, row.of)
    label = f"`{row.label}`" if row.label else ""
    return f"| `{row.name}` | {row.kind} | {of} | {label} | {row.text} |"


def test_the_table_of_metrics_is_what_the_code_has() -> None:
    table = [line for line in PAGE.splitlines() if line.startswith("| `lexicast_")]
    assert table == [told(row) for row in METRICS]


def test_every_path_is_told_of() -> None:
    code = "\n".join(path.read_text() for path in CONSOLE.rglob("*.py"))
    served = set(re.findall(r'web\.(?:get|post)\(f?"(/[\w/]+)"', code))
    listed = re.search(r"(?s)pages = \{(.*?)\}", code)
    assert listed is not None
    served |= {f"/api/v1/{name}" for name in re.findall(r'"(\w+)": self', listed[1])}
    assert len(served) > 15
    assert {path for path in served if not re.search(rf"`(?:GET |POST )?{path}[`? ]", PAGE)} == set()


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_what_prometheus_is_asked_for_there_is(name: str) -> None:
    known = {row.name for row in METRICS} | {
        f"{row.name}_{part}" for row in METRICS if row.kind == "histogram" for part in ("bucket", "sum", "count")
    }
    asked = set(re.findall(r"\blexicast_\w+", (CONSOLE / "prometheus" / name).read_text()))
    assert asked
    assert asked - known == set()
