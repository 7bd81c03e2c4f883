"""The command line and the launch below it, against a real cluster in a local Ray of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from lexicast.actors.cli.main import command_line
from lexicast.actors.cli.status import render
from lexicast.actors.status.report import GONE, size, span, warnings
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


# -- pieces


def told(time: float, stored: int, **coordinator: Any) -> dict[str, Any]:
    """A snapshot of two coordinators, one of them gone."""
    said = {
        "cluster_id": "c" * 32,
        "groups": 1,
        "pid": 1,
        "started_us": 0,
        "group_states": {0: [3, "coordinator-0", ["coordinator-0"]]},
        "members": {"coordinator": {}, "broker": {}, "sampler": {}},
    }
    gone = {"error": "no such actor", "fate": GONE, "since_us": 1}
    rates = {"stored_per_s": float(stored)}
    coordinators = {"coordinator-0": {"rates": rates, **coordinator}, "coordinator-1": gone}
    now = {"time": time, "coordination": said, "coordinators": coordinators, "brokers": {}, "sampling": {}}
    return {**now, "rates": {**rates, "delivered_per_s": 0.0}, "warnings": list(warnings(now))}


def shown(now: dict[str, Any], width: int = 140) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(render(now))
    return console.export_text()


def test_status_shows_who_stands_in_for_each_broker() -> None:
    now = told(0, 0)
    assert "backups" not in shown(now)
    now["coordination"]["backups"] = {"broker-0": ["", "broker-1"], "broker-1": ["broker-2", ""]}
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "broker-1"] in rows
    assert ["broker-1", "broker-2"] in rows


def test_status_shows_each_bridge_and_warns_of_one_that_is_away() -> None:
    counts = dict.fromkeys(("looped_out", "looped_in", "retried_out", "retried_in", "refused_out", "refused_in"), 0)
    bridge = {"address": "mqtt://broker.example", "connected": True, "since_us": 1, "last_error": "", **counts}
    bridge |= {"sent": 12_345, "received": 678, "errors": 0, "lag_records": 90, "echoes_forgotten": 0}
    bridge |= {"refused_waiting": 0, "filters_refused": 0}
    away = {**bridge, "connected": False, "last_error": "it cannot be reached", "refused_out": 3}
    now = told(100.0, 0)
    assert "bridges" not in shown(now)
    refused = {**bridge, "refused_waiting": 7, "filters_refused": 2, "last_error": "0x83"}
    now["bridges"] = {
        "bridge-a": bridge,
        "bridge-b": away,
        "bridge-d": refused,
        "bridge-c": {"error": "starting", "fate": GONE},
    }
    text = shown(now)
    rows = [line.split() for line in text.splitlines()]
    (row,) = [row for row in rows if row[:2] == ["bridge-a", "mqtt://broker.example"]]
    assert row[2:] == ["connected", "1", "min", "90", "12,345", "678", "0", "0", "0"]
    assert any(row[:3] == ["bridge-b", "mqtt://broker.example", "away"] for row in rows)
    lines = [line for line in warnings(now) if line.startswith("bridge-b")]
    assert "is not connected to mqtt://broker.example for 1 min (it cannot be reached)" in lines[0]
    assert "3 publications were refused for good" in lines[1]
    lines = [line for line in warnings(now) if line.startswith("bridge-d")]
    assert "refuses 7 publications, which are sent again until it takes them" in lines[0]
    assert "does not let it subscribe to 2 of its filters (last: 0x83)" in lines[1]


def test_status_fits_a_terminal_of_80_columns() -> None:
    store = {
        "topics": 1_234_567,
        "sessions": 18_000,
        "full": False,
        "used_bytes": 12_345_678_901,
        "free_bytes": 5 << 40,
    }
    now = told(5e5, 0, uncommitted_bytes=63 << 20, store={**store, "oldest_us": 3})
    family = {"messages": 1_234_567, "raw_bytes": 345_678_901, "sent_bytes": 45_678_901, "dictionary_bytes": 145_678}
    now["sampling"] = {"sampling-0": {"families": {"flights/EWR/+": {**family, "codec": "deflate-9"}}}}
    counts = {"clients": 1_000, "filters": 100_000, "catching_up": 12}
    now["brokers"] = {"broker-0": {**counts, "mqtt": {"connections": 18_000, "sessions": 18_000}}}
    rows = {words[0]: words for line in shown(now, 80).splitlines() if (words := line.split())}
    assert rows["coordinator-0"] == ["coordinator-0", "0", "63.0", "MiB", "11.5", "GiB", "5.0", "TiB", "5", "days"]
    assert rows["broker-0"] == ["broker-0", "18,000", "18,000", "1,000", "100,000", "0", "0", "12", "0", "B"]
    words = ["1,234,567", "329.7", "MiB", "43.7", "MiB", "286.0", "MiB", "86.7%", "deflate-9"]
    assert rows["flights/EWR/+"] == ["flights/EWR/+", *words]


def test_status_tells_what_is_wrong_first() -> None:
    lines = shown(told(61, 0)).splitlines()
    assert lines[1].startswith("! coordinator-1 has not served for 1 min (no such actor); Ray does not start it again")
    assert any(line.split()[:2] == ["coordinator-1", "does"] for line in lines[2:])


@pytest.mark.parametrize(
    ("coordinator", "words"),
    [
        ({"store": {"full": True, "free_bytes": 5 << 20}}, "publishing is refused, 5.0 MiB are left"),
        ({"failure": "EIO"}, "gave up|given up after an I/O error \\(EIO\\)"),
        ({"full_in_s": 5_400.0}, "its store is full in 1 h 30 min"),
        ({"uncommitted_bytes": 40 << 20}, "40.0 MiB wait for the disk"),
        ({"brokers": {"broker-7": {"groups_long_behind": 3}}}, "broker-7 has been behind coordinator-0 in 3 topic"),
    ],
)
def test_warnings_are_sentences(coordinator: dict[str, Any], words: str) -> None:
    assert any(re.search(words, warning) for warning in told(0, 0, **coordinator)["warnings"])


@pytest.mark.parametrize(
    ("states", "lost", "words"),
    [
        ([(7, "a", "ab"), (7, "a", "a")], "", ["1 topic groups have one copy of 2 (others are catching up)"]),
        ([(7, "a", "ab"), (7, "a", "a")], "b", ["2 topic groups have one copy of 2 (b cannot be reached)"]),
        ([(7, "a", "a"), (7, "b", "ab")], "a", ["1 topic groups wait for a,", "1 topic groups have one copy of 2 (a"]),
        ([(7, "a", "ab"), (7, "b", "ab")], "", []),
    ],
)
def test_what_has_too_few_copies_is_told(states: list[tuple[int, str, str]], lost: str, words: list[str]) -> None:
    now = told(0, 0)
    said = {
        "lost": list(lost),
        "copies": 2,
        "group_states": {g: [e, who, list(s)] for g, (e, who, s) in enumerate(states)},
    }
    now["coordinators"] = {}
    found = list(warnings({**now, "coordination": {**now["coordination"], **said}}))
    assert len(found) == len(words)
    assert all(warning.startswith(each) for warning, each in zip(found, words, strict=True))


def test_times_are_for_people() -> None:
    assert [span(s) for s in (0, 59, 60, 5_000, 3 * 86_400)] == ["0 s", "59 s", "1 min", "1 h 23 min", "3 days"]


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 2048, 12_345_678, 5 << 40)] == [
        "0 B",
        "1,023 B",
        "2.0 KiB",
        "11.8 MiB",
        "5.0 TiB",
    ]


# -- ray_cluster.yaml


def test_ray_cluster_yaml_holds_what_was_measured() -> None:
    text = (ROOT / "ray_cluster.yaml").read_text()
    yaml: Any = import_module("yaml")  # Ray's; it has no types
    config = yaml.safe_load(text)
    assert config["provider"]["type"] == "local"
    assert config["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"])
    assert set(config["auth"]) == {"ssh_user", "ssh_private_key"}
    head, worker = (" ".join(config[f"{role}_start_ray_commands"]) for role in ("head", "worker"))
    assert "RAY_gcs_storage=rocksdb RAY_gcs_storage_path=" in head
    assert "RAY_UP_enable_autoscaler_v2=0" in head
    assert "--autoscaling-config=~/lexicast/ray.yaml" in head
    assert "lexicast up --address auto" in head
    assert "ray start --address=$RAY_HEAD_IP:6379" in worker
    for start in (head, worker):
        assert start.index("export RAY_AUTH_MODE=token") < start.index("ray start")
    assert head.count("RAY_AUTH_MODE=token") == 3  # Ray's, and the service's in both its forms
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"]
    checks = {
        word for word in worker.replace(";", "").split() if word.startswith(("RAY_health", "RAY_grpc", "RAY_gcs_rpc"))
    }
    assert len(checks) == 9
    assert checks <= set(head.replace(";", "").split())  # detection must be the same on all nodes


def test_ray_itself_accepts_ray_cluster_yaml() -> None:
    program = (
        "import sys, yaml\n"
        "from ray.autoscaler._private.util import prepare_config, validate_config\n"
        "validate_config(prepare_config(yaml.safe_load(sys.stdin)))\n"
    )
    text = (ROOT / "ray_cluster.yaml").read_text()
    subprocess.run([sys.executable, "-c", program], input=text, text=True, env=ENVIRONMENT, check=True)


def test_status_shows_what_conditions_cost() -> None:
    now = told(0, 0)
    content = {"subscribers": 2, "predicates": 0, "residual": 0, "matched_records": 10, "skipped_records": 1_990}
    now["brokers"]["broker-0"] = {"content": {**content, "us_a_record": 3.25, "unread_payloads": {"malformed": 4}}}
    assert "content subscriptions" not in shown(now)
    now["brokers"]["broker-0"]["content"] |= {"predicates": 7, "residual": 1}
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "2", "7", "1", "2,000", "10", "3.2", "us", "4"] in rows


def test_status_shows_what_links_got_paid_and_saved() -> None:
    now = told(0, 0)
    links = {"links": 0, "with_dictionary": 0, "dictionaries": 0, "paid_bytes": 0, "saved_bytes": 0, "worst_bytes": 0}
    now["brokers"]["broker-0"] = {"links": links}
    assert "clients that know dictionaries" not in shown(now)
    links |= {"links": 1_200, "with_dictionary": 7, "dictionaries": 9, "paid_bytes": 9_216, "saved_bytes": 3 << 20}
    links["worst_bytes"] = -512
    rows = [line.split() for line in shown(now).splitlines()]
    assert ["broker-0", "1,200", "7", "9", "9.0", "KiB", "3.0", "MiB", "-512", "B"] in rows


def test_status_shows_the_overlay_that_matchers_form() -> None:
    now = told(0, 0)
    matcher: dict[str, Any] = {"brokers": 2, "overlay": None}
    now["matchers"] = {"matcher-0": matcher}
    now["brokers"]["broker-0"] = {"overlay": {"entries": 0, "circuits": 0}}
    assert "overlay" not in shown(now)
    counts = {"neighbours": 51, "neighbour_links": 49, "circuits": 7, "routed": 12_345, "relayed": 999, "lost": 4}
    matcher["overlay"] = counts | {"hops_mean": 1.625, "hops_max": 3}
    now["brokers"]["broker-0"]["overlay"] = {"entries": 3, "circuits": 297}
    routed = {"entries": 2, "routed": 777, "hops_mean": 1.5, "hops_max": 2, "lost": 6}
    now["coordinators"] = {"coordinator-0": {"matching": {"overlay": routed}}}
    text = shown(now)
    assert "overlay" in text
    for number in ("51", "49", "12,345", "1.62", "999", "297", "777", "1.50"):
        assert number in text


def test_status_shows_what_matchers_spare() -> None:
    now = told(0, 0)
    assert "matchers" not in shown(now)
    cells = {"cells": 96, "columns": ["delay", "carrier:text"], "split": 2, "with_more_copies": 0, "handed_over": 1}
    now["coordination"]["cells"] = cells
    now["matchers"] = {"matcher-0": {"brokers": 2, "conditions": 5_000, "filters": 3, "asked_records": 700}}
    matching = {
        "filters": 4,
        "asked_records": 700,
        "given_records": 30,
        "withheld_records": 1_370,
        "unanswered_parts": 1,
    }
    now["coordinators"] = {"coordinator-0": {"matching": matching}}
    text = shown(now)
    assert "matchers: 96 cells by delay and carrier:text, 2 split, 1 being handed over" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["matcher-0", "2", "5,000", "3", "700"] in rows
    assert ["coordinator-0", "4", "700", "30", "1,370", "1"] in rows
