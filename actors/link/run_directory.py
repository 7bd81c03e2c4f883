"""The folder of a node's sockets: links', and those of a Ray of its own."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.files import make_folder


def run_directory(config: Config) -> Path:
    """Where this node's link sockets lie, made if need be: a short path, since a socket's may have 107 bytes.

    Raises UnavailableError when somebody else has made it: /tmp is everybody's.
    """
    return private_folder(config.node.data_path(), Path("/tmp"))


def private_folder(data_path: Path, below: Path) -> Path:
    """A folder that belongs to a data folder, below one that may be everybody's; nobody else enters it.

    Raises UnavailableError when somebody else has made it, OSError when it cannot be made.
    """
    tag = hashlib.blake2b(str(data_path).encode(), digest_size=6).hexdigest()
    path = below / f"lexicast-{os.getuid()}-{tag}"
    make_folder(path)
    made = path.lstat()
    if made.st_uid != os.getuid() or not stat.S_ISDIR(made.st_mode) or made.st_mode & 0o077:
        raise UnavailableError(f"{path} is not this user's own folder: remove it, it is where sockets go")
    return path
