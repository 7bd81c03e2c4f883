"""What is installed, judged: Python, the packages that are pinned, the compiled data path, Java for Spark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .findings import OK, PROBLEM, WARNING, Finding

PYTHON_MIN: Final = (3, 11)
# What figures were measured and tests run with.
PYTHON_TESTED: Final = (3, 11)
MACHINES_TESTED: Final = ("x86_64", "aarch64")
JAVA_OF_SPARK: Final = 17

_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([\w, -]*)\])?\s*(?:==\s*([\w.!+*-]+))?\s*(?:;\s*(.*))?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


class InstalledPackage(NamedTuple):
    """A package as it is here. `version`: "" where there is none; `failure`: why it cannot be imported, if so."""

    version: str
    failure: str = ""


class Requirement(NamedTuple):
    """A package that lexicast needs. `version`: "" where any will do; `text`: as pip takes it."""

    name: str
    version: str
    text: str


def python_finding(version: Sequence[int], implementation: str) -> Finding:
    """`version`: major, minor and whatever follows."""
    told = f"{implementation} {'.'.join([str(part) for part in version[:3]])}"
    if implementation != "CPython" or tuple(version[:2]) < PYTHON_MIN:
        return Finding("python", PROBLEM, f"this is {told}", "install CPython 3.11, and lexicast with it")
    if tuple(version[:2]) != PYTHON_TESTED:
        return Finding("python", WARNING, f"this is {told}; lexicast is tested with 3.11", "prefer CPython 3.11")
    return Finding("python", OK, told)


def machine_finding(system: str, machine: str, pointer_bits: int) -> Finding:
    """`system`, `machine`: as `uname` tells them."""
    told = f"{system} on {machine}, {pointer_bits} bits"
    if system != "Linux":
        return Finding("machine", PROBLEM, told, "run it on Linux: it needs epoll, SO_REUSEPORT and flock")
    if pointer_bits < 64:
        return Finding("machine", PROBLEM, told, "use a 64-bit Python: stores are mapped into memory whole")
    if machine not in MACHINES_TESTED:
        return Finding("machine", WARNING, told, f"not known to work there: {' and '.join(MACHINES_TESTED)} are")
    return Finding("machine", OK, told)


def parse_requirements(lines: Sequence[str], extras: Sequence[str] = ()) -> list[Requirement]:
    """Those of a package's metadata (Requires-Dist), without those of other extras than `extras`."""
    found = []
    for line in lines:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match is None:
            continue
        name, own_extras, version, marker = match.groups()
        extra = _EXTRA.search(marker or "")
        if extra is None or extra[1] in extras:
            text = f"{name}[{own_extras}]" if own_extras else name
            found.append(Requirement(name, version or "", f"{text}=={version}" if version else text))
    return found


def package_findings(wanted: Sequence[Requirement], installed: Mapping[str, InstalledPackage]) -> Iterator[Finding]:
    """One for each package that is not as it should be, else one for all. `installed`: by the names in `wanted`."""
    if not wanted:
        yield Finding(
            "packages", WARNING, "lexicast runs from its sources, not installed: its pins are not known", "`make setup`"
        )
        return
    wrong = [_package_finding(each, installed.get(each.name, InstalledPackage(""))) for each in wanted]
    found = [finding for finding in wrong if finding is not None]
    yield from found
    if not found:
        pinned = ", ".join([f"{each.name} {each.version}" for each in wanted if each.version])
        yield Finding("packages", OK, f"all {len(wanted)} are there as pinned ({pinned})")


def _package_finding(wanted: Requirement, here: InstalledPackage) -> Finding | None:
    install = f"pip install '{wanted.text}'"
    if not here.version:
        return Finding("packages", PROBLEM, f"{wanted.name} is not installed", install)
    if here.failure:
        told = f"{wanted.name} {here.version} cannot be loaded: {here.failure}"
        return Finding("packages", PROBLEM, told, f"pip install --force-reinstall '{wanted.text}'")
    if wanted.version and here.version != wanted.version:
        told = f"{wanted.name} is {here.version}; {wanted.version} is what lexicast is tested with"
        return Finding("packages", WARNING, told, install)
    return None


def data_path_finding(fitting: Mapping[str, Path] | str, pure: str) -> Finding:
    """`fitting`: see `lexicast.compiled.fitting`; `pure`: the variable that asks for the sources, "" where it is not
    set."""
    if not isinstance(fitting, str):
        return Finding("data path", OK, f"{len(fitting)} compiled modules are used")
    told = f"the data path runs from its sources, which is slower: {fitting}"
    if pure:
        return Finding("data path", WARNING, told, f"unset {pure}")
    return Finding("data path", WARNING, told, "install a C compiler and `make compiled`, or install a wheel")


def java_finding(is_spark: bool, problem: str, version: int | None) -> Finding:
    """`problem`: why there is no Java for Spark, in words; `version`: of the one that Spark gets, None: it does not
    say."""
    if not is_spark:
        return Finding("java", OK, "not needed: lexicast[spark] is not installed")
    if problem:
        return Finding("java", PROBLEM, problem, "see docs/history.md; everything but Spark works without")
    if version != JAVA_OF_SPARK:
        told = f"Spark gets Java {version or 'of an unknown version'}; tested is {JAVA_OF_SPARK}"
        return Finding("java", WARNING, told, "let JAVA_HOME name a Java 17, or unset it")
    return Finding("java", OK, f"Spark gets Java {version}")
