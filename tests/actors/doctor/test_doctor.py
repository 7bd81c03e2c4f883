"""`lexicast doctor` on this machine: without a cluster, with things amiss, and beside one that runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.doctor.cluster_facts import ray_sessions
from lexicast.actors.doctor.examination import examine
from lexicast.actors.doctor.findings import OK, PROBLEM, WARNING, Finding
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.security.passwords import ARGON2ID, SALT_BYTES, hash_password

from ...support.up import OWN_ENVIRONMENT, lexicast_up

TIMEOUT_S = 60
BRIDGES = """
[far]
address = "mqtts://far.example"
ca = "ca/ca.crt"
[[far.topic]]
filter = "sensors/#"
direction = "out"
"""
# A machine on which tests have run has thousands of Ray's sessions.
NO_SESSIONS = Path(__file__).parent
ENVIRONMENT = {**OWN_ENVIRONMENT, "COLUMNS": "200", "RAY_TMPDIR": str(NO_SESSIONS)}


def doctor(*options: str, program: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `program`: what it runs first."""
    start = f"{program}\nfrom lexicast.actors.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", start, "doctor", *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=ENVIRONMENT,
        check=False,
    )


def findings(ended: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, str]]]:
    """By check; the exit code says whether there is a problem among them."""
    assert ended.stderr == ""
    told: dict[str, Any] = json.loads(ended.stdout)
    problems = [each for each in told["findings"] if each["state"] == PROBLEM]
    assert told["counts"][PROBLEM] == len(problems)
    assert ended.returncode == (1 if problems else 0), problems
    found: dict[str, list[dict[str, str]]] = {}
    for each in told["findings"]:
        found.setdefault(each["check"], []).append(each)
    return found


def test_a_machine_without_a_cluster(tmp_path: Path) -> None:
    found = findings(doctor("--json", "--data-dir", str(tmp_path / "data"), "--set", f"mqtt.port={free_port()}"))
    assert {"python", "packages", "memory", "clock", "file system", "disk space", "ports", "cluster"} <= {*found}
    assert found["cluster"][0]["is_so"] == f"none runs on {tmp_path / 'data'}"
    assert [each["state"] for each in found["ports"]] == [OK]
    assert [each["state"] for each in found["data folder"]] == [OK]
    assert not (tmp_path / "data").exists()  # it has changed nothing
    assert not [each for every in found.values() for each in every if "cannot be looked at" in each["is_so"]]


def test_people_are_told_the_worst_first_and_what_to_do(tmp_path: Path) -> None:
    ended = doctor("--data-dir", str(tmp_path), "--set", "mqtt.prot=1")
    assert (ended.returncode, ended.stderr) == (1, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("problem")
    assert "mqtt.port" in ended.stdout
    assert "-> mend it" in ended.stdout
    assert lines[-1].endswith(" fine")


def test_a_port_that_somebody_else_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = findings(doctor("--json", "--data-dir", str(tmp_path), "--set", f"mqtt.port={port}"))
    (told,) = found["ports"]
    assert told["state"] == PROBLEM
    assert f"process {os.getpid()}" in told["is_so"]


def test_certificates_keys_and_password_files(tmp_path: Path) -> None:
    made = DevelopmentAuthority(tmp_path / "ca").create()
    made.issue_server(["localhost"])
    passwords = tmp_path / "passwords"
    passwords.write_text("ada:plain\n")
    passwords.chmod(0o646)
    knobs = [f"mqtt.port={free_port()}", f"mqtt.tls_port={free_port()}", f"security.password_file={passwords}"]
    knobs += [f"tls.certificate={made.path('server', 'crt')}", f"tls.key={made.path('ca', 'key')}"]
    settings = [word for knob in knobs for word in ("--set", knob)]
    found = findings(doctor("--json", "--data-dir", str(tmp_path), *settings))
    assert [each["state"] for each in found["certificates"]] == [PROBLEM]  # the key is the authority's
    assert [each["state"] for each in found["security"]] == [PROBLEM]  # no hash
    assert [each["state"] for each in found["rights"]] == [PROBLEM]  # others write it
    assert [each["state"] for each in found["ports"]] == [OK, OK]


def test_a_secret_that_others_can_read_is_named_once(tmp_path: Path) -> None:
    made = DevelopmentAuthority(tmp_path / "ca").create()
    made.issue_server(["localhost"])
    passwords, key = tmp_path / "passwords", made.path("server", "key")
    passwords.write_text("")
    for secret in (passwords, key):
        secret.chmod(0o644)
    knobs = [f"mqtt.port={free_port()}", f"mqtt.tls_port={free_port()}", f"security.password_file={passwords}"]
    knobs += [f"tls.certificate={made.path('server', 'crt')}", f"tls.key={key}"]
    settings = [word for knob in knobs for word in ("--set", knob)]
    found = findings(doctor("--json", "--data-dir", str(tmp_path), *settings))
    assert sorted(each["is_so"].split()[-1] for each in found["rights"]) == sorted([str(passwords), str(key)])
    for check in ("security", "certificates"):
        assert [each for each in found[check] if "can be read by" in each["is_so"]] == []


def test_what_up_would_not_start_with(tmp_path: Path) -> None:
    made = DevelopmentAuthority(tmp_path / "ca").create()
    made.issue_server(["localhost"])
    bridges = tmp_path / "bridges.toml"
    bridges.write_text(BRIDGES)
    knobs = [f"mqtt.port={free_port()}", "mqtt.host=0.0.0.0", "mqtt.allow_anonymous=always", f"bridge.file={bridges}"]
    settings = [word for knob in knobs for word in ("--set", knob)]
    found = findings(doctor("--json", "--data-dir", str(tmp_path), *settings))
    assert [each["state"] for each in found["addresses"]] == [PROBLEM]
    assert "--insecure" in found["addresses"][0]["is_so"]
    assert [(each["state"], "far" in each["is_so"]) for each in found["bridges"]] == [(OK, True)]
    (tmp_path / "ca" / "ca.crt").unlink()
    found = findings(doctor("--json", "--data-dir", str(tmp_path), *settings))
    assert [(each["state"], "ca.crt" in each["is_so"]) for each in found["bridges"]] == [(PROBLEM, True)]


@pytest.mark.parametrize("module", ["lmdb", "psutil", "cryptography", "ray"])
def test_packages_that_are_missing_or_broken_leave_no_traceback(tmp_path: Path, module: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None"
    ended = doctor("--json", "--data-dir", str(tmp_path), program=program)
    assert ended.stderr == ""
    told = json.loads(ended.stdout)["findings"]
    named = [each for each in told if each["state"] == PROBLEM and f"{module} " in each["is_so"]]
    assert named or module == "ray"  # which takes a second to load, so it is not


LOADS_NOTHING = """
import sys
import tempfile
from lexicast.actors.doctor.examination import Examination
from lexicast.cluster.config.tables import load_config
parts = Examination(load_config(overrides=dict(word.split("=", 1) for word in sys.argv[1:]))).parts()
for name, part in parts.items():
    before = {*sys.modules}
    found = list(part())
    late = [each for each in {*sys.modules} - before if each.startswith(("lexicast.", "cryptography.", "psutil"))]
    assert not late, (name, late)
    assert not [each for each in found if each.state == "problem"], found
"""


def test_threads_load_nothing_at_the_same_time(tmp_path: Path) -> None:
    """What goes in a circle: two that load it from both ends lock each other out."""
    made = DevelopmentAuthority(tmp_path / "ca").create()
    made.issue_server(["localhost"])
    salt = bytes(SALT_BYTES[ARGON2ID])
    (tmp_path / "passwords").write_text(f"ada:{hash_password(b'guess', salt).text()}\n")
    (tmp_path / "passwords").chmod(0o600)
    (tmp_path / "bridges.toml").write_text(BRIDGES)
    knobs = [f"node.data_dir={tmp_path}", f"mqtt.port={free_port()}", f"mqtt.tls_port={free_port()}"]
    knobs += [f"tls.certificate={made.path('server', 'crt')}", f"tls.key={made.path('server', 'key')}"]
    knobs += [f"security.password_file={tmp_path / 'passwords'}", f"bridge.file={tmp_path / 'bridges.toml'}"]
    command = [sys.executable, "-c", LOADS_NOTHING, *knobs]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=ENVIRONMENT, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_part_that_fails_or_hangs_is_a_finding() -> None:
    hold = threading.Event()

    def fails() -> list[Finding]:
        raise OSError("no such disk")

    def hangs() -> list[Finding]:
        hold.wait()
        return []

    started_s = time.monotonic()
    found = examine({"a": fails, "b": hangs, "c": lambda: [Finding("c", OK, "so")]}, patience_s=0.2)
    hold.set()
    assert time.monotonic() - started_s < TIMEOUT_S
    assert [(each.check, each.state) for each in found] == [("a", WARNING), ("b", PROBLEM), ("c", OK)]
    assert "no such disk" in found[0].is_so


@pytest.fixture
def near_root() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket (108 bytes)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_sessions_of_ray_are_in_use_while_somebody_listens(near_root: Path) -> None:
    folders = [near_root / "ray" / "session_a", near_root / f"lexicast-{os.getuid()}-0" / "ray" / "session_b"]
    for folder in folders:
        (folder / "sockets").mkdir(parents=True)
        (folder / "log").write_bytes(bytes(8192))
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(folders[0] / "sockets" / "raylet"))
        ended.close()
        server.bind(str(folders[1] / "sockets" / "raylet"))
        server.listen()
        found = ray_sessions(near_root)
    assert found.is_all
    assert {each.path: each.is_used for each in found.found} == {str(folders[0]): False, str(folders[1]): True}
    assert all(each.used_bytes >= 8192 for each in found.found)


def test_beside_a_cluster_that_runs_and_one_that_was_killed(tmp_path: Path) -> None:
    with lexicast_up(tmp_path, "--mqtt-port", "0") as ready:
        where = ["--data-dir", ready["data_dir"], "--set", f"mqtt.port={ready['mqtt_port']}"]
        found = findings(doctor("--json", *where))
        assert [each["state"] for each in found["ports"]] == [OK]
        assert "served by this cluster" in found["ports"][0]["is_so"]
        assert [each["state"] for each in found["cluster"]] == [OK, OK]
        assert [each["state"] for each in found["versions"]] == [OK]
        run = Path(ready["data_dir"]) / "run.json"
        kept = run.read_text()
    run.write_text(kept)
    found = findings(doctor("--json", *where))
    assert [each["state"] for each in found["cluster"]] == [WARNING]
    assert "was killed" in found["cluster"][0]["is_so"]
