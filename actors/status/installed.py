"""What is installed here."""

from __future__ import annotations

from functools import cache


@cache
def installed_version() -> str:
    """The version of lexicast that was installed when this process first asked."""
    from importlib import metadata  # loads what reads mail: only where the version is told

    try:
        return metadata.version("lexicast")
    except metadata.PackageNotFoundError:
        return "(from its sources)"
