"""What one worker runs, in order, where several run the suite: a file; and all that starts Ray."""

from __future__ import annotations

from typing import Final

RAY: Final = "ray"
# The files that start a Ray; tests/tidy looks whether these are all.
RAY_FILES: Final = (
    "tests/actors/cli/test_certificates_cluster.py",
    "tests/actors/cli/test_cli.py",
    "tests/actors/console/test_page_in_browser.py",
    "tests/actors/client/test_ray.py",
    "tests/actors/doctor/test_doctor.py",
    "tests/actors/launch/test_cluster.py",
    "tests/actors/matcher/test_ray.py",
    "tests/actors/matcher/test_ray_overlay.py",
    "tests/actors/sampling/test_ray.py",
    "tests/attacks/test_strangers.py",
    "tests/bench/test_demo.py",
    "tests/bench/test_demo_page.py",
    "tests/bench/test_demo_where.py",
    "tests/bench/test_observed.py",
    "tests/cluster/test_files.py",
    "tests/docs/test_five_minutes.py",
    "tests/raydp_jobs/test_cluster.py",
    "tests/raydp_jobs/test_commands.py",
    "tests/raydp_jobs/test_page_questions.py",
    "tests/stories/test_failover.py",
    "tests/stories/test_nodes.py",
    "tests/stories/test_recover.py",
    "tests/stories/test_operators_cluster.py",
    "tests/stories/test_operators_nodes.py",
    "tests/stories/test_ray_up.py",
)
# Files that take a minute and more: begun next, since one that comes last leaves the other workers idle.
LONG_FILES: Final = ("tests/test_compiled.py",)


def file_of(node_id: str) -> str:
    """The test file that a node id names."""
    return node_id.partition("::")[0]


def unit_of(node_id: str) -> str:
    """The unit of work that a test belongs to: one worker runs it, in order."""
    file = file_of(node_id)
    return RAY if file in RAY_FILES else file


def turn_of(node_id: str) -> int:
    """Where several run the suite: what takes longest is begun first."""
    unit = unit_of(node_id)
    return 0 if unit == RAY else 1 if unit in LONG_FILES else 2
