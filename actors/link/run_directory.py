"""The folder of a node's link sockets."""

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
    tag = hashlib.blake2b(str(config.node.data_path()).encode(), digest_size=6).hexdigest()
    path = Path("/tmp") / f"lexicast-{os.getuid()}-{tag}"
    make_folder(path)
    made = path.lstat()
    if made.st_uid != os.getuid() or not stat.S_ISDIR(made.st_mode) or made.st_mode & 0o077:
        raise UnavailableError(f"{path} is not this user's own folder: remove it, it is where link sockets go")
    return path
