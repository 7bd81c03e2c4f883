"""A PostgreSQL server for one run: Debian's binaries, or those of PyPI's `pgserver`; on a Unix socket alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

from lexicast.cluster.errors import UnavailableError

START_S = 30.0
_DEBIAN = Path("/usr/lib/postgresql")
# Durable as shipped; more memory than the default, so that the table and its index stay in it.
_SETTINGS = {"listen_addresses": "", "shared_buffers": "256MB", "max_wal_size": "4GB", "fsync": "on"}


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`; None when there is none."""
    candidates = sorted(_DEBIAN.glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = shutil.which("initdb")
    if found is not None:
        candidates.append(Path(found).resolve().parent)
    package = util.find_spec("pgserver")
    if package is not None and package.origin is not None:
        candidates.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((path for path in candidates if (path / "initdb").exists()), None)


@contextmanager
def server() -> Iterator[str]:
    """The connection string of a fresh server, which is stopped and deleted afterwards. Raises UnavailableError."""
    folder = binaries()
    if folder is None:
        raise UnavailableError("PostgreSQL is not installed: `apt-get install postgresql` or `pip install pgserver`")
    # PostgreSQL refuses to run as root: Debian's package has made the user `postgres`, else `nobody` will do.
    user = _user() if os.getuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="lexicast-pg"))
    if user is not None:
        shutil.chown(home, user)
    try:
        data = home / "data"
        command = [str(folder / "initdb"), "-D", str(data), "-U", "lexicast", "-A", "trust", "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=home)
        options = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
        log = home / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(folder / "postgres"), "-D", str(data), "-k", str(home), *options],
                stdout=output,
                stderr=output,
                user=user,
                cwd=home,
            )
        try:
            _wait(process, home / ".s.PGSQL.5432", log)
            yield f"host={home} user=lexicast dbname=postgres"
        finally:
            process.terminate()
            process.wait()
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"PostgreSQL did not start: {error.stderr.decode(errors='replace').strip()}") from None
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _user() -> str:
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    until = time.monotonic() + START_S
    while not (socket.exists() and b"ready to accept" in log.read_bytes()):
        if process.poll() is not None or time.monotonic() > until:
            raise UnavailableError(f"PostgreSQL did not start: {log.read_text(errors='replace').strip()[-500:]}")
        time.sleep(0.05)
