"""What all tests share: an environment without Ray's token file and usage reports, and hypothesis' settings."""

from __future__ import annotations

import os

from hypothesis import settings

# Before anything imports ray: its workers inherit these.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# No deadline: a shared machine stalls for longer than any example takes. In CI the same examples each time, so that
# a red run is the change's fault; on a developer's machine new ones, which is how hypothesis finds things.
settings.register_profile("lexicast", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("lexicast")
