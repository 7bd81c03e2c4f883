"""The jobs' commands as a user runs them beside `lexicast up`, with Ray's own defaults: a token that Ray asks for.

`export` needs pyarrow alone; those below `spark` are there only where Spark is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

import lexicast.sync

# Spark starts in half a minute, and a busy machine takes a multiple of it.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "lexicast.actors.cli"]
START_S = 180.0
JOB_S = 300.0
MESSAGES = 600


class Session:
    """A user's terminals: one where the cluster runs, others for commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LEXICAST_", "RAY_AUTH"))},
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),  # Ray's token lies there
            "COLUMNS": "200",
        }

    def lexicast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return subprocess.run(
            [*COMMAND, *arguments, "--data-dir", str(self.data_dir)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JOB_S,
            env=self.environment,
            cwd=self.folder,
            check=False,
        )


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    here = Session(tmp_path_factory.mktemp("session"))
    ready = here.folder / "ready.json"
    command = [*COMMAND, "up", "--mqtt-port", "0", "--ready-file", str(ready), "--data-dir", str(here.data_dir)]
    with (here.folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=here.environment)
    try:
        end = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, (here.folder / "log").read_text()
            assert time.monotonic() < end, "the cluster does not start in time"
            time.sleep(0.1)
        with lexicast.sync.connect(data_dir=here.data_dir) as bus:
            bus.publish_many([(f"readings/{at % 3}", json.dumps({"n": at}).encode()) for at in range(MESSAGES)])
        yield here
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_rays_token_is_shown_to_the_users_own_cluster(session: Session) -> None:
    assert (session.folder / ".ray/auth_token").exists(), "Ray asks for no token any more: this test shows nothing"
    result = session.lexicast("export", "out", "--filter", "readings/+", "--columns", "offset,payload")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{MESSAGES:,} messages, ")
    table = parquet.read_table(session.folder / "out")
    assert table.column_names == ["offset", "payload"]
    assert sorted(json.loads(payload)["n"] for payload in table["payload"].to_pylist()) == list(range(MESSAGES))


def test_export_twice_into_a_folder_is_refused(session: Session) -> None:
    (session.folder / "full").mkdir()
    (session.folder / "full/file").touch()
    result = session.lexicast("export", "full")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "holds files already" in result.stderr


needs_spark = pytest.mark.skipif(find_spec("raydp") is None, reason="needs lexicast[spark]")


@needs_spark
@pytest.mark.spark
def test_a_question_in_sql(session: Session) -> None:
    query = "SELECT topic, count(*) n, max(payload.n) most FROM (SELECT topic, from_json(cast(payload AS STRING), "
    query += "'n INT') payload FROM history) GROUP BY topic ORDER BY topic"
    result = session.lexicast("spark", "sql", query, "--filter", "readings/+", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows == [{"topic": f"readings/{at}", "n": MESSAGES // 3, "most": MESSAGES - 3 + at} for at in range(3)]


@needs_spark
@pytest.mark.spark
def test_a_wrong_question_is_one_line_and_leaves_the_cluster_alone(session: Session) -> None:
    result = session.lexicast("spark", "sql", "SELECT nonsense FROM history")
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "nonsense" in result.stderr
    with lexicast.sync.connect(data_dir=session.data_dir) as bus:
        bus.publish("still/there", b"")


@needs_spark
@pytest.mark.spark
def test_a_dry_run_publishes_nothing(session: Session) -> None:
    result = session.lexicast("spark", "train-dictionaries", "--filter", "readings/+", "--dry-run")
    assert (result.returncode, result.stderr) == (0, "")
    assert "would be published" in result.stdout
    with lexicast.sync.connect(data_dir=session.data_dir) as bus:
        publishers = {message.publisher for message in bus.history("$sdc/#")}
    assert publishers <= {"sampling-0"}


class Answering:
    """`lexicast channel run` in a terminal of its own."""

    def __init__(self, session: Session, name: str) -> None:
        self._log = session.folder / name
        command = [*COMMAND, "channel", "run", "--data-dir", str(session.data_dir)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=session.environment, cwd=session.folder
            )

    @property
    def said(self) -> str:
        """All that it has said."""
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> None:
        """Return once it has said so."""
        end = time.monotonic() + JOB_S
        while self.said.count(text) < times:
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.05)


@needs_spark
@pytest.mark.spark
def test_a_runner_of_channels_is_killed_and_another_one_goes_on(session: Session) -> None:
    """REAPS, section II: what is subscribed to twice is asked for once, and each new row is told once."""
    (session.folder / "fresh.sql").write_text("SELECT n FROM counts WHERE n % 2 = :rest")
    made = session.lexicast(
        *("channel", "create", "Fresh", "--period", "2s", "--sql", "fresh.sql"),
        *("--history", "counts=counts/+@30m", "--columns", "counts=n LONG"),
    )
    assert (made.returncode, made.stderr) == (0, "")
    topics = [f"$channel/Fresh/rest={rest}" for rest in (0, 1)]
    first, second = Answering(session, "first"), Answering(session, "second")
    published = 0

    def publish(seconds: float) -> None:
        nonlocal published
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            bus.publish("counts/all", json.dumps({"n": published}))
            published += 1
            time.sleep(0.05)

    try:
        with lexicast.sync.connect(data_dir=session.data_dir) as bus, bus.subscribe(topics), bus.subscribe(topics[0]):
            first.says("answer")
            second.says("answer")
            leads, follows = sorted((first, second), key=lambda each: "standing by" in each.said)
            publish(1.0)
            leads.says("Fresh: 2 subscriptions", 2)
            publish(3.0)
            leads.process.kill()
            publish(1.0)
            follows.says("Fresh: 2 subscriptions", 2)
            publish(2.0)
            follows.says("published", follows.said.count("published") + 3)
            listed = session.lexicast("channel", "list")
            assert f":{follows.process.pid} answers them" in listed.stdout
            assert "2 subscriptions" in listed.stdout
            follows.process.send_signal(signal.SIGINT)
            assert follows.process.wait(JOB_S) == 0, follows.said
            rows = {topic: [json.loads(each.payload)["rows"] for each in bus.history(topic)] for topic in topics}
        for rest, topic in enumerate(topics):
            told = [row["n"] for answer in rows[topic] for row in answer]
            assert sorted(told) == list(range(rest, published, 2)), "each once"
        assert "nobody answers them" in session.lexicast("channel", "list").stdout
    finally:
        for each in (first, second):
            each.process.kill()
            each.process.wait()
