"""What no file may hold, and what some must: paths, hosts, pins, the names of the systems built on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache

import pytest

from .repository import ROOT

SYSTEMS = ["DualDB", "PREDICT", "TAPD", "REAPS", "SREM", "MigratoryData"]


@cache
def texts() -> list[tuple[str, str]]:
    """(name, text) of every text file that git has or would take."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    found = []
    for each in names:
        path = ROOT / each
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                found.append((each, data.decode("utf-8", "replace")))
    return found


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a path of one machine", r"(?<![\w.~}$/-])/(?:work|root|Users|home/\w+)/\w"),
        ("a path of one machine", r"(?<![\w.])/tmp" + r"/w/"),
        ("a registry's host", r"\b(?:files\.pythonhosted|pypi|registry\.npmjs|deb\.debian|proxy\.golang)\.org\b"),
        ("a conflict mark", r"(?m)^(?:<{7}|>{7}) "),
        ("unfinished work", r"\b(?:TO" + r"DO|FIX" + r"ME|X{3})\b"),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    for each, text in texts():
        found = re.search(pattern, text)
        assert not found, f"{each}: {found and found[0]!r} is {what}"


def test_dependencies_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pins.items()}
    wanted = project["dependencies"] + [each for extra in project["optional-dependencies"].values() for each in extra]
    for requirement in wanted:
        found = re.match(r"([\w-]+)(?:\[\w+\])?(?:==(\S+))?$", requirement)
        assert found, f"{requirement}: give a package, or one exact version of it"
        version = pinned.get(found[1].lower())
        assert version, f"{requirement} is not in constraints.txt"
        assert not found[2] or re.fullmatch(found[2].replace("*", r"[\d.]+"), version), f"{requirement}: {version}"


def test_the_readme_names_the_systems_it_builds_on() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [system for system in SYSTEMS if system not in readme]
    assert not missing, f"README.md does not name {', '.join(missing)}"
