"""What an operator does wrong, or the machine does to him: one line that says what to do, and a code that is not 0.

`lexicast up` runs in this process here, and Ray may not start: whatever can be told before is told before.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest

from lexicast.actors.broker.port_claim import claim_port
from lexicast.actors.cli import main as cli
from lexicast.actors.client.ray_endpoints import ray_endpoints
from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.launch import ray_connection, store_check
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreFormatError, UnavailableError
from lexicast.cluster.membership import COORDINATOR, Member
from lexicast.storage.environment.environment import DATA_FILE
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.disk import POISON_FILE
from lexicast.storage.file.sealing import seal
from lexicast.storage.log.block_format import FORMAT_VERSION
from lexicast.storage.registry import FILE, FORMAT_KEY, Registry
from lexicast.storage.store import Store

GROUPS = 8
META_BYTES = 2 * 4096  # LMDB's two meta pages
WITHOUT_OVERRIDE = "-dac_override,-dac_read_search"

Fails = Callable[..., str]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run `lexicast ARGUMENTS`: one line on stderr, nothing else, the code; the line."""

    def no_ray(*_: object) -> None:
        raise AssertionError("Ray was to be started: nothing was wrong before")

    monkeypatch.setattr(ray_connection, "start_embedded", no_ray)

    def run(*arguments: str, code: int = 1) -> str:
        monkeypatch.setattr(sys, "argv", ["lexicast", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert out.strip() == ""
        assert err.count("\n") == 1, err
        assert err.startswith("lexicast: ")
        assert ended.value.code == code
        return err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder as a cluster of one coordinator leaves it."""
    return made(tmp_path / "data")


def made(folder: Path) -> Path:
    with LocalCoordination(folder / "coordination", GROUPS) as coordination:
        cluster_id: str = coordination.status()["cluster_id"]
    registry = Registry(folder / "coordination")
    registry.commit({f"incarnation/{COORDINATOR}/coordinator-0": 1})
    registry.close()
    store(folder / "coordinator-0", cluster_id).close()
    return folder


def store(directory: Path, cluster_id: str) -> Store:
    return Store.open(
        directory,
        cluster_id=cluster_id,
        member="coordinator-0",
        groups=GROUPS,
        options=StoreOptions(),
        clock=SystemClock(),
    )


def overwrite(path: Path, count: int) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * count)


def up(folder: Path, *options: str) -> tuple[str, ...]:
    return ("up", "--data-dir", str(folder), "--mqtt-port", "0", *options)


# -- the disk


def test_a_sound_folder_goes_on_to_start_ray(fails: Fails, folder: Path) -> None:
    with pytest.raises(AssertionError, match="Ray was to be started"):
        fails(*up(folder))


def test_a_store_with_damaged_headers(fails: Fails, folder: Path) -> None:
    overwrite(folder / "coordinator-0" / DATA_FILE, META_BYTES)
    said = fails(*up(folder))
    assert "coordinator-0 is not a store this lexicast can open" in said
    assert "restore it from a backup" in said


def test_a_store_cut_short(fails: Fails, folder: Path) -> None:
    os.truncate(folder / "coordinator-0" / DATA_FILE, META_BYTES)
    assert "coordinator-0 is damaged" in fails(*up(folder))


def test_a_damaged_registry(fails: Fails, folder: Path) -> None:
    overwrite(folder / "coordination" / FILE, META_BYTES)
    assert "registry.mdb cannot be opened" in fails(*up(folder))


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_lost_store(fails: Fails, folder: Path, left: str) -> None:
    (folder / "coordinator-0" / DATA_FILE).unlink()
    if left == "an empty file":
        (folder / "coordinator-0" / DATA_FILE).touch()
    said = fails(*up(folder))
    assert "data.mdb is gone or empty" in said
    assert "put it back" in said


def test_a_store_that_ends_the_process_which_opens_it(
    monkeypatch: pytest.MonkeyPatch, fails: Fails, folder: Path, tmp_path: Path
) -> None:
    program = tmp_path / "crashes"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert "is damaged (looking at it ended in SIGSEGV)" in fails(*up(folder))


def test_a_store_of_a_newer_lexicast(fails: Fails, folder: Path) -> None:
    with lmdb.open(str(folder / "coordinator-0"), max_dbs=32) as environment:
        identity = environment.open_db(b"identity")
        with environment.begin(write=True) as transaction:
            fields = [FORMAT_VERSION + 1, "c" * 32, "coordinator-0", GROUPS]
            transaction.put(b"identity", seal("identity", b"identity", msgpack.packb(fields)), db=identity)
    said = fails(*up(folder))
    assert f"format {FORMAT_VERSION + 1}" in said
    assert "newer" in said


def test_a_registry_of_a_newer_lexicast(fails: Fails, folder: Path) -> None:
    registry = Registry(folder / "coordination")
    registry.commit({FORMAT_KEY: 99})
    registry.close()
    assert "format 99" in fails(*up(folder))


def test_another_clusters_store(fails: Fails, folder: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other")
    shutil.rmtree(folder / "coordinator-0")
    shutil.copytree(other / "coordinator-0", folder / "coordinator-0")
    said = fails(*up(folder))
    assert "is the store of cluster" in said
    assert "but" in said


def test_a_poisoned_store(fails: Fails, folder: Path) -> None:
    (folder / "coordinator-0" / POISON_FILE).write_text("EIO\n")
    said = fails(*up(folder))
    assert "had an I/O error (EIO)" in said
    assert "lexicast store repair" in said


def test_a_store_in_use(fails: Fails, folder: Path) -> None:
    cluster_id = store_check.registered_cluster(folder / "coordination")[0]
    held = store(folder / "coordinator-0", cluster_id)
    try:
        assert "in use by another process" in fails(*up(folder))
    finally:
        held.close()


def without_rights(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`lexicast ARGUMENTS` of a user for whom permissions count (root's do not)."""
    drop = ["setpriv", f"--bounding-set={WITHOUT_OVERRIDE}", f"--inh-caps={WITHOUT_OVERRIDE}"]
    return subprocess.run(
        [*(drop if os.geteuid() == 0 else []), sys.executable, "-m", "lexicast.actors.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )


def test_no_right_to_the_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o500)
    ended = without_rights(*up(folder))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"lexicast: cannot use {folder}: Permission denied; choose another --data-dir\n"


def test_no_right_to_a_store(folder: Path) -> None:
    data = folder / "coordinator-0" / DATA_FILE
    data.chmod(0o400)
    ended = without_rights(*up(folder))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"lexicast: no right to read and write {data}: ")
    assert ended.stderr.count("\n") == 1


# -- ports


def test_a_port_of_a_program_that_knows_nothing_of_us(fails: Fails, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = str(stranger.getsockname()[1])
        said = fails("up", "--data-dir", str(tmp_path), "--mqtt-port", port)
    assert f"port {port} is in use by another program" in said
    assert "--mqtt-port" in said


def test_a_port_that_another_cluster_would_share(fails: Fails, tmp_path: Path) -> None:
    claim = claim_port("127.0.0.1", 0, "theirs")
    try:
        said = fails("up", "--data-dir", str(tmp_path), "--mqtt-port", str(claim.port))
    finally:
        claim.close()
    assert "another lexicast cluster (theirs)" in said


# -- Ray


@pytest.fixture
def web_server() -> Iterator[int]:
    """Somebody who answers, but is no Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("command", ["up", "pub", "status"])
def test_no_ray_at_the_address(fails: Fails, tmp_path: Path, command: str) -> None:
    arguments = {"up": up(tmp_path), "pub": ("pub", "a", "b"), "status": ("status",)}[command]
    said = fails(*arguments, "--address", "127.0.0.1:1")
    assert "no Ray answers at 127.0.0.1:1" in said
    assert "ray start --head" in said


@pytest.mark.parametrize("prefix", ["", "ray://"])
async def test_clients_are_told_that_no_ray_is_there(prefix: str, web_server: int) -> None:
    with pytest.raises(UnavailableError, match="no Ray answers"):
        await ray_endpoints(f"{prefix}127.0.0.1:1")
    with pytest.raises(UnavailableError, match="is no Ray"):
        await ray_endpoints(f"{prefix}127.0.0.1:{web_server}")


def test_a_dead_address_in_the_environment(fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "127.0.0.1:1 (from RAY_ADDRESS)" in fails(*up(tmp_path), "--address", "auto")


def test_ray_that_cannot_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "lexicast.actors.cli", *up(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RAY_TMPDIR": "/proc/none"},
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("lexicast: cannot start Ray: ")
    assert "RAY_TMPDIR" in ended.stderr
    assert ended.stderr.count("\n") == 1


# -- the command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--xyz"), "No such option: --xyz (see `lexicast up --help`)"),
        (("nonsense",), "No such command 'nonsense' (see `lexicast --help`)"),
        (("up", "--mqtt-port", "x"), "'--mqtt-port'"),
        (("pub",), "Missing argument 'topic'"),
        (("up", "--set", "mqtt.prot=1"), "unknown key mqtt.prot (command line): did you mean mqtt.port?"),
        (("up", "--config", "none.toml"), "cannot read the configuration none.toml"),
        (("up", "--brokers", "300"), "node.brokers"),
        (("up", "--nodes", "2"), "--nodes needs --address"),
    ],
)
def test_wrong_usage(fails: Fails, arguments: tuple[str, ...], words: str) -> None:
    assert words in fails(*arguments, code=2)


def test_a_configuration_with_an_unknown_key(fails: Fails, tmp_path: Path) -> None:
    file = tmp_path / "lexicast.toml"
    file.write_text("[mqtt]\nprot = 1\n")
    assert f"unknown key mqtt.prot ({file}): did you mean mqtt.port?" in fails("up", "--config", str(file), code=2)


@pytest.mark.parametrize(
    "command", [("pub", "a", "b"), ("sub", "a"), ("history", "a"), ("status",)], ids=lambda c: c[0]
)
def test_commands_without_a_cluster(fails: Fails, tmp_path: Path, command: tuple[str, ...]) -> None:
    assert "start one with `lexicast up`" in fails(*command, "--data-dir", str(tmp_path))


def test_down_without_a_cluster(fails: Fails, tmp_path: Path) -> None:
    assert "nothing to stop" in fails("down", "--data-dir", str(tmp_path))


def test_the_stores_of_other_nodes_are_not_missed(folder: Path) -> None:
    config: Any = Config().replaced(node__data_dir=str(folder))
    shutil.rmtree(folder / "coordinator-0")
    store_check.check_stores(config, all_here=False)
    with pytest.raises(StoreFormatError, match="gone or empty"):
        store_check.check_stores(config, all_here=True)


async def test_a_member_is_what_makes_a_store_missed(tmp_path: Path) -> None:
    """A coordinator that never served may have an empty folder: its first start was cut off."""
    with LocalCoordination(tmp_path / "coordination", GROUPS) as coordination:
        pass
    config = Config().replaced(node__data_dir=str(tmp_path))
    store_check.check_stores(config, all_here=True)
    with LocalCoordination(tmp_path / "coordination", GROUPS) as coordination:
        await coordination.register(COORDINATOR, Member("coordinator-0", 0, (), "node", 1))
    with pytest.raises(StoreFormatError, match="gone or empty"):
        store_check.check_stores(config, all_here=True)
