"""Ray's token towards a cluster of this machine's own user.

Ray 2.60 turns its token authentication on for every Ray that `ray.init` starts, and keeps the token in the user's home.
It sends that token only to a Ray that it has found itself ("auto"), never to an address it was given: an address may
be a stranger's. The one in a data folder's `run.json` is not, because only the user of `lexicast up` can write there.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.files import FILE_MODE, create_file, make_folder

MODE_VARIABLE: Final = "RAY_AUTH_MODE"
DISABLED: Final = "disabled"
TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_BYTES: Final = 32


def token_file() -> Path:
    """Where Ray keeps the user's token."""
    return Path.home() / ".ray" / "auth_token"


def make_own_token() -> None:
    """Make the user's token where there is none, for the Ray that is started next, and keep others from reading it.

    Ray would make it itself, but leave it to everybody to read. Raises UnavailableError when it cannot be written.
    """
    if any(name in os.environ for name in TOKEN_VARIABLES) or os.environ.get(MODE_VARIABLE, "token") != "token":
        return
    file = token_file()
    try:
        make_folder(file.parent)
        with suppress(FileExistsError), create_file(file) as token:
            token.write(secrets.token_hex(TOKEN_BYTES).encode())
        file.chmod(FILE_MODE)
    except OSError as error:
        raise UnavailableError(f"cannot keep Ray's token in {file}: {error.strerror}") from None


def use_own_token() -> None:
    """Show the user's token, if there is one, to the Ray that is joined next; what RAY_AUTH_MODE says holds."""
    has_token = any(name in os.environ for name in TOKEN_VARIABLES) or token_file().exists()
    if not has_token or MODE_VARIABLE in os.environ:
        return
    os.environ[MODE_VARIABLE] = "token"
    if "ray" in sys.modules:
        # It has read the mode when it was imported. Its own `ray.init("auto")` has it read again in the same way.
        import_module("ray._raylet").Config.initialize("")
