"""Ray's token towards a cluster of this machine's own user.

Ray 2.60 turns its token authentication on for every Ray that `ray.init` starts, and keeps the token in the user's home.
It sends that token only to a Ray that it has found itself ("auto"), never to an address it was given: an address may
be a stranger's. The one in a data folder's `run.json` is not, because only the user of `lexicast up` can write there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MODE_VARIABLE: Final = "RAY_AUTH_MODE"
TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def use_own_token() -> None:
    """Show the user's token to the Ray that is joined next, if there is one and RAY_AUTH_MODE does not say otherwise.

    Call it before `ray` is imported, which reads the mode once.
    """
    has_token = any(name in os.environ for name in TOKEN_VARIABLES) or (Path.home() / ".ray" / "auth_token").exists()
    if has_token:
        os.environ.setdefault(MODE_VARIABLE, "token")
