"""What all tests share: no token file and usage reports of Ray's, hypothesis' settings, Spark's tests where it is."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from .support.units_of_work import turn_of

# Before anything imports ray: its workers inherit these.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Tests run against the sources: they look into them, and replace parts. The processes that they start run what was
# compiled, and tests/test_compiled.py runs tests of the data path against it.
os.environ["LEXICAST_PURE"] = "0" if os.environ.get("LEXICAST_TESTS") == "compiled" else "1"
import lexicast  # noqa: F401 - imported for what it decides now

os.environ["LEXICAST_PURE"] = "0"

# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no health check of speed: a shared machine stalls for longer than any example takes. In CI the same
# examples each time, so that a red run is the change's fault; on a developer's machine new ones, which is how
# hypothesis finds things.
settings.register_profile(
    "lexicast",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("lexicast")

# What starts Spark is there only where it is installed.
collect_ignore = ["raydp_jobs/test_cluster.py"] if find_spec("raydp") is None else []


@pytest.hookimpl(trylast=True)  # after xdist's
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: starts Spark in a cluster (make test-spark)")
    config.addinivalue_line("markers", "cve(*ids): shows how lexicast answers these (docs/cves.md)")
    config.addinivalue_line("markers", "mqtt(*ids): proves these statements of MQTT 5 (tests/mqtt_statements.toml)")
    config.addinivalue_line("markers", "mqtt311(*ids): proves these of MQTT 3.1.1, where MQTT 5 says something else")
    config.addinivalue_line("markers", "drill: wants the machine for itself for some minutes (make test-drill)")
    if config.pluginmanager.has_plugin("dsession"):  # pytest -n 2: this process hands the tests out
        from .support.side_by_side import SideBySide

        config.pluginmanager.register(SideBySide(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several: what takes longest is begun first
        items.sort(key=lambda item: turn_of(item.nodeid))
