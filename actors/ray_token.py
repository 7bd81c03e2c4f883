"""Ray's token towards a cluster of this machine's own user.

Ray 2.60 turns its token authentication on for every Ray that `ray.init` starts, and keeps the token in the user's home.
It sends that token only to a Ray that it has found itself ("auto"), never to an address it was given: an address may
be a stranger's. The one in a data folder's `run.json` is not, because only the user of `lexicast up` can write there.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

MODE_VARIABLE: Final = "RAY_AUTH_MODE"
DISABLED: Final = "disabled"
TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def use_own_token() -> None:
    """Show the user's token, if there is one, to the Ray that is joined next; what RAY_AUTH_MODE says holds."""
    has_token = any(name in os.environ for name in TOKEN_VARIABLES) or (Path.home() / ".ray" / "auth_token").exists()
    if not has_token or MODE_VARIABLE in os.environ:
        return
    os.environ[MODE_VARIABLE] = "token"
    if "ray" in sys.modules:
        # It has read the mode when it was imported. Its own `ray.init("auto")` has it read again in the same way.
        import_module("ray._raylet").Config.initialize("")
