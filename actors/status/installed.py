"""What is installed here."""

from __future__ import annotations


def installed_version() -> str:
    """The version of lexicast that is installed."""
    from importlib import metadata  # loads what reads mail: only where the version is told

    try:
        return metadata.version("lexicast")
    except metadata.PackageNotFoundError:
        return "(from its sources)"
