"""An embedded Ray without those of its processes that nobody asks: they cost every start CPU, and memory to its end.

These are the dashboard (with `include_dashboard=False` Ray starts it all the same and waits for it, only that it then
serves nothing), the autoscaler's monitor (there is one node) and the log monitor (drivers get no logs). For the last
two Ray has options that `ray.init` does not pass on. So what `ray.init` calls is replaced while it runs; Ray is pinned,
and `tests/actors/cli/test_cli.py` looks at what has been started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

# What a dashboard that could not be started gives: no address, no process.
NO_DASHBOARD: Final = (None, None)


@contextmanager
def lean_ray() -> Iterator[None]:
    """`ray.init` starts fewer processes within. For one thread: it is Ray's modules that change."""
    parameter: Any = import_module("ray._private.parameter")
    services: Any = import_module("ray._private.services")
    parameters, start_dashboard = parameter.RayParams, services.start_api_server
    parameter.RayParams = partial(parameters, no_monitor=True, include_log_monitor=False)
    services.start_api_server = lambda *_, **__: NO_DASHBOARD
    try:
        yield
    finally:
        parameter.RayParams, services.start_api_server = parameters, start_dashboard
