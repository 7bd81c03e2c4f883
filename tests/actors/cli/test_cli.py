"""The command line and the launch below it, against a real cluster in a local Ray of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from lexicast.actors.cli.main import command_line
from lexicast.cluster.config.tables import Config
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.codecs import FIELDS
from lexicast.compression.training import train

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("LEXICAST_", "RAY_"))},
    "PYTHONPATH": str(ROOT / "src"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "COLUMNS": "200",
}
CLI = [sys.executable, "-m", "lexicast.actors.cli"]
START_TIMEOUT_S = 120


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A user's home: Ray keeps the token there which, by default, it asks for."""
    ENVIRONMENT["HOME"] = str(tmp_path_factory.mktemp("home"))


def run(*arguments: str, stdin: str | None = None, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=ENVIRONMENT | more,
        cwd=cwd,
        check=False,
    )


def fails(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One line on stderr, nothing else, and the code."""
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert result.returncode == code


# -- without a cluster


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "a", "b"),
        ("sub", "a"),
        ("history", "a"),
        ("trace", "a"),
        ("family", "show", "a/+"),
        ("status",),
        ("top",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_a_cluster_one_line_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    fails(run(*arguments, "--data-dir", str(tmp_path)), 1, "no cluster runs on", "lexicast up")


def test_down_without_a_cluster(tmp_path: Path) -> None:
    fails(run("down", "--data-dir", str(tmp_path)), 1, "nothing to stop")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pub", "a"), "one of PAYLOAD, --stdin, --file"),
        (("pub", "a", "--stdin", "--count", "3"), "--count"),
        (("status", "--watch", "--json"), "--watch"),
        (("top", "--sort", "size"), "name, clients, messages, bytes"),
        (("sub", "a", "--address", "auto", "--data-dir", "x"), "not both"),
        (("config", "--set", "mqtt.prot=1"), "mqtt.port"),
        (("config", "--set", "mqtt.port"), "TABLE.KEY=VALUE"),
        (("up", "--address", "ray://127.0.0.1:1", "--mqtt-port", "0"), "--address auto"),
    ],
)
def test_wrong_usage_is_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    fails(run(*arguments, LEXICAST_NODE__DATA_DIR=str(tmp_path)), 2, words)


def test_unknown_options_are_code_2() -> None:
    assert run("up", "--nonsense").returncode == 2


def test_no_ray_at_an_address_is_told_at_once(tmp_path: Path) -> None:
    result = run("up", "--data-dir", str(tmp_path), "--mqtt-port", "0", "--address", "127.0.0.1:1")
    fails(result, 1, "no Ray answers at 127.0.0.1:1")


def test_a_data_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fails(run("up", "--data-dir", str(tmp_path / "file" / "data"), "--mqtt-port", "0"), 1, "choose another --data-dir")


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("config",), ("config", "--documented")])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    full(*arguments)


def full(*arguments: str) -> None:
    """With a full device for stdout a command says so in one line and ends."""
    with Path("/dev/full").open("w") as device:
        ended = subprocess.run(
            [*CLI, *arguments],
            stdout=device,
            stderr=subprocess.PIPE,
            text=True,
            timeout=START_TIMEOUT_S,
            env=ENVIRONMENT,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "lexicast: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("arguments", [("config",), ("config", "--documented")])
def test_a_reader_that_has_gone_is_nobodys_error(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        ended = subprocess.run(
            [*CLI, *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=START_TIMEOUT_S,
            env=ENVIRONMENT,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_sigterm_ends_a_command_as_ctrl_c_does() -> None:
    program = """
import os, signal, typer
from lexicast.actors.cli.common import reported, run_app
app = typer.Typer()
@app.command()
@reported
def work() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        print("put away")
raise SystemExit(run_app(app, []))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "put away\n", "")


def test_every_command_explains_itself() -> None:
    runner, app = CliRunner(), command_line()
    everything = runner.invoke(app, ["--help"]).stdout
    for command in ("up", "down", "status", "top", "pub", "sub", "history", "family", "config", "demo", "doctor"):
        assert command in everything
    for command in ("up", "status", "top", "doctor", "pub", "sub", "history", "trace"):
        assert f"lexicast {command}" in runner.invoke(app, [command, "--help"]).stdout  # an example


def test_config_prints_what_is_in_effect_and_can_be_read_again(tmp_path: Path) -> None:
    shown = run("config", "--set", "node.brokers=3", cwd=tmp_path, LEXICAST_MQTT__PORT="1884")
    (tmp_path / "lexicast.toml").write_text(shown.stdout)
    again = json.loads(run("config", "--json", cwd=tmp_path).stdout)
    assert again == Config().replaced(node__brokers=3, mqtt__port=1884).as_dict()
    assert "[mqtt]" in run("config", "--documented").stdout


# -- with one


@dataclass
class Cluster:
    process: subprocess.Popen[str]
    folder: Path
    ready: dict[str, Any]

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return run(*arguments, "--data-dir", str(self.folder), stdin=stdin)


def start(program: list[str], folder: Path, ready_file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, "--data-dir", str(folder), "--mqtt-port", "0", "--ready-file", str(ready_file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    process = start([*CLI, "up"], folder / "data", folder / "ready.json")
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert " serves (cluster " in first, first + process.stdout.read()
        yield Cluster(process, folder / "data", json.loads((folder / "ready.json").read_text()))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close() if process.stdout else None


def test_the_ready_file_says_where_everything_is(cluster: Cluster) -> None:
    ready = cluster.ready
    assert ready["mqtt_port"] > 0
    assert ready["namespace"] == "lexicast"
    assert ready["data_dir"] == str(cluster.folder)
    pids = ready["pids"]
    everybody = [*pids["brokers"], *pids["coordinators"], *pids["sampling"], pids["coordination"]]
    assert len(set(everybody)) == 4
    assert all(psutil.pid_exists(pid) for pid in everybody)
    for name in ("run.json", "cluster.key"):
        assert (cluster.folder / name).stat().st_mode & 0o777 == 0o600


def test_of_rays_processes_those_run_that_somebody_asks(cluster: Cluster) -> None:
    """An embedded Ray has neither dashboard nor autoscaler, and reads no logs (actors/launch/lean_ray.py)."""
    below = [process.cmdline() for process in psutil.Process(cluster.process.pid).children(recursive=True)]
    assert [words for words in below if words and words[0].endswith("/raylet")], below
    scripts = {Path(word).name for words in below for word in words if word.endswith(".py")}
    assert not scripts & {"dashboard.py", "monitor.py", "log_monitor.py"}


def test_what_was_learned_of_a_family_is_told(cluster: Cluster) -> None:
    messages = [b'{"n":%d,"state":"%s"}' % (at, (b"on", b"off")[at % 3 > 0]) for at in range(100)]
    learned = train(messages, 65_536, FIELDS, family=b"cli/+/learned")
    packed = cluster.folder / "learned.sdc"
    packed.write_bytes(learned.pack())
    topic = dictionary_topic(b"cli/+/learned").decode()
    assert cluster.run("pub", topic, "--file", str(packed), "--retain").returncode == 0
    shown = cluster.run("family", "show", "cli/+/learned")
    assert '{"n":<1>,"state":"<2>"}' in shown.stdout, shown
    assert "<2> 1.0 bits: one of 2: 'off' 65.3%" in shown.stdout
    assert "cli/+/learned: fields-1" in cluster.run("family", "show").stdout
    fails(cluster.run("family", "show", "other/+"), 2, "other/+", "cli/+/learned")


def test_what_is_published_can_be_read(cluster: Cluster) -> None:
    assert cluster.run("pub", "cli/one", "hello").returncode == 0
    assert cluster.run("pub", "cli/lines", "--stdin", stdin="a\nb\n\nd").returncode == 0
    assert cluster.run("pub", "cli/many", "again", "--count", "3", "--qos", "0").returncode == 0
    assert cluster.run("history", "cli/lines").stdout == "a\nb\n\nd\n"
    assert cluster.run("history", "cli/many", "--limit", "2").stdout == "again\nagain\n"
    seen = cluster.run("sub", "cli/one", "--since", "beginning", "--count", "1", "--json")
    message = json.loads(seen.stdout)
    assert (message["topic"], message["payload"], message["qos"]) == ("cli/one", "hello", 1)
    verbose = cluster.run("history", "cli/+", "--since", "1h", "-v").stdout.splitlines()
    assert len(verbose) == 8
    assert f"cli/one {message['position']} {message['time']} hello" in verbose


def test_a_publication_is_followed(cluster: Cluster) -> None:
    sent = cluster.run("trace", "cli/traced", "--send", "--payload", "hello")
    assert sent.returncode == 0, sent
    position = sent.stdout.split()[2].removesuffix(",")
    steps = [line for line in sent.stdout.splitlines() if " ms " in line]
    assert len(steps) == 9, sent.stdout
    assert steps[0].split()[0] == "0.000"
    place = cluster.run("trace", "cli/traced").stdout
    assert place.startswith(f"cli/traced at {position}\n")
    assert "committed  1 of 1 copies that count have it" in place
    assert json.loads(cluster.run("trace", position, "--json").stdout)["topic"] == "cli/traced"
    fails(cluster.run("trace", "cli/never"), 2, "nothing was published to 'cli/never'")
    fails(cluster.run("trace", "cli/#", "--send"), 2, "wildcard")
    fails(cluster.run("trace", "cli/traced", "--payload", "x"), 2, "--send")


def test_conditions_choose_what_is_read(cluster: Cluster) -> None:
    lines = "".join([f'{{"delay":{delay}}}\n' for delay in range(20)])
    assert cluster.run("pub", "where/a", "--stdin", stdin=lines).returncode == 0
    assert cluster.run("history", "where/#", "--where", "delay BETWEEN 3 AND 4").stdout.split() == lines.split()[3:5]
    assert cluster.run("history", "where/#", "--where", "delay >= 15", "--count").stdout == "5\n"
    seen = cluster.run("sub", "where/a", "--since", "beginning", "--count", "2", "--where", "delay > 17")
    assert seen.stdout.split() == lines.split()[18:]
    fails(cluster.run("sub", "where/a", "--where", "delay > OR"), 2, "column 9", "OR")


def test_readers_and_disks_that_fail(cluster: Cluster) -> None:
    folder = str(cluster.folder)
    run("pub", "full/1", "x", "--data-dir", folder)
    for arguments in (("history", "full/#"), ("sub", "full/#", "--since", "1h"), ("status",), ("status", "--json")):
        full(*arguments, "--data-dir", folder)
    quiet = subprocess.Popen(
        [*CLI, "sub", "quiet/#", "--data-dir", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    assert quiet.stdout is not None
    assert quiet.stderr is not None
    quiet.stdout.close()
    assert quiet.wait(START_TIMEOUT_S) == 0  # though no message ever comes
    assert quiet.stderr.read() == b""
    quiet.stderr.close()


def test_a_wrong_topic_is_told(cluster: Cluster) -> None:
    assert cluster.run("pub", "cli/#", "x").returncode == 2


def test_status_shows_actors_groups_and_rates(cluster: Cluster) -> None:
    said = json.loads(cluster.run("status", "--json").stdout)
    rates = {"stored_per_s", "published_per_s", "delivered_per_s", "received_bytes_per_s", "sent_bytes_per_s"}
    assert set(said["rates"]) == rates
    assert said["coordination"]["cluster_id"] == cluster.ready["cluster_id"]
    assert {tuple(state[1:2]) for state in said["coordination"]["group_states"].values()} == {("coordinator-0",)}
    assert all(state[0] >= 1 for state in said["coordination"]["group_states"].values())
    assert "error" not in said["brokers"]["broker-0"]
    assert "key" not in said["coordination"]
    shown = cluster.run("status").stdout
    for name in ("coordination", "coordinator-0", "broker-0", "sampling-0"):
        assert name in shown


def test_a_second_up_on_the_folder_is_refused_and_harms_nothing(cluster: Cluster) -> None:
    fails(cluster.run("up", "--mqtt-port", "0"), 1, "is in use by `lexicast up`", str(cluster.process.pid))
    assert (cluster.folder / "run.json").exists()


def test_a_port_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    port = str(cluster.ready["mqtt_port"])
    fails(run("up", "--data-dir", str(tmp_path), "--mqtt-port", port), 1, f"port {port} is in use", "--mqtt-port")


def test_down_stops_everything_and_leaves_nothing(cluster: Cluster) -> None:
    """Last of the cluster's tests: it ends it."""
    started = psutil.Process(cluster.process.pid).children(recursive=True)
    assert len(started) >= 6  # gcs, raylet and four actors
    assert "stopped" in cluster.run("down").stdout
    assert cluster.process.wait(30) == 0
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert not (cluster.folder / "run.json").exists()
    assert not (cluster.folder / "cluster.key").exists()


# -- a start that fails


def test_a_damaged_store_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "coordination").mkdir()
    (tmp_path / "coordination" / "registry.mdb").write_bytes(b"\1" * 20_000)
    result = run("up", "--data-dir", str(tmp_path), "--mqtt-port", "0")
    fails(result, 1, "registry.mdb cannot be opened")
    processes = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert processes == []
