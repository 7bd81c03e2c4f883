"""The guard of the MQTT port: one cluster shares it, nobody else gets it."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from lexicast.actors.broker import port_claim as ports
from lexicast.actors.broker.port_claim import PortClaim, claim_port, reuse_port_socket
from lexicast.actors.link.run_directory import run_directory
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import UnavailableError

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _own_lock_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def claim() -> Iterator[PortClaim]:
    with closing(claim_port(HOST, 0, "ours")) as made:
        yield made


def test_port_0_takes_a_free_port(claim: PortClaim) -> None:
    assert claim.port > 0
    with closing(claim_port(HOST, 0, "theirs")) as other:
        assert other.port != claim.port


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_who_chooses_the_same_port_at_the_same_time_gets_another(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between choice and lock another one comes, of this cluster (its port for TLS) or of another."""
    others: list[PortClaim] = []
    lock_file = ports._lock_file

    def later(port: int) -> AbstractContextManager[int]:
        if not others:
            monkeypatch.setattr(ports, "_lock_file", lock_file)
            others.append(claim_port(HOST, port, whose))
        return lock_file(port)

    monkeypatch.setattr(ports, "_lock_file", later)
    with closing(claim_port(HOST, 0, "ours")) as claim, closing(others[0]) as other:
        assert claim.port != other.port


def test_programs_that_have_seeded_their_randomness_alike_do_not_choose_alike() -> None:
    """As hypothesis does, in all processes that run tests."""
    random.seed(0)
    first = ports._choices()
    random.seed(0)
    assert not first or ports._choices() != first


def test_who_claims_while_the_lock_is_let_go_has_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To turn an exclusive lock into a shared one is not atomic."""
    others: list[PortClaim] = []
    lock = ports._try

    def in_between(descriptor: int, operation: int) -> bool:
        if operation == fcntl.LOCK_SH and not others:
            lock(descriptor, fcntl.LOCK_UN)
            monkeypatch.setattr(ports, "_try", lock)
            (file,) = tmp_path.glob("*.lock")
            others.append(claim_port(HOST, int(file.stem.rpartition("-")[2]), "theirs"))
        return lock(descriptor, operation)

    monkeypatch.setattr(ports, "_try", in_between)
    with closing(claim_port(HOST, 0, "ours")) as claim, closing(others[0]) as other:
        assert claim.port != other.port


def test_the_system_gives_the_port_taken_for_0_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen when `up` begins and served once Ray and its many connections are there."""
    (tmp_path / "range").write_text("25000\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL_RANGE", tmp_path / "range")
    with closing(claim_port(HOST, 0, "ours")) as claim:
        assert 20_000 <= claim.port < 25_000


def test_without_room_below_them_port_0_is_one_of_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL_RANGE", tmp_path / "range")
    with closing(claim_port(HOST, 0, "ours")) as claim:
        assert claim.port > 0


def test_one_cluster_shares_its_port(claim: PortClaim) -> None:
    with closing(claim_port(HOST, claim.port, "ours")) as second:
        assert second.port == claim.port
        with closing(reuse_port_socket(HOST, claim.port)) as one, closing(reuse_port_socket(HOST, claim.port)) as two:
            one.listen()
            two.listen()
            with closing(claim_port(HOST, claim.port, "ours")) as third:  # also while it listens
                assert third.port == claim.port


def test_another_cluster_is_refused_and_the_holder_named(claim: PortClaim) -> None:
    with pytest.raises(UnavailableError, match=f"{claim.port} is in use by another lexicast cluster .ours.: choose"):
        claim_port(HOST, claim.port, "theirs")
    with closing(claim_port(HOST, claim.port, "ours")):
        pass  # the refusal did not disturb the holder
    with pytest.raises(UnavailableError):
        claim_port(HOST, claim.port, "theirs")


def test_a_given_back_port_is_free_for_anybody(claim: PortClaim) -> None:
    claim.close()
    claim.close()
    with closing(claim_port(HOST, claim.port, "theirs")) as other:
        assert other.port == claim.port


def test_another_program_is_noticed() -> None:
    with closing(socket.create_server((HOST, 0), reuse_port=True)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port} is in use by another program"):
            claim_port(HOST, port, "ours")
    with closing(claim_port(HOST, port, "ours")):
        pass  # and the refused claim left no lock


def test_a_claimed_port_is_not_given_to_others(claim: PortClaim) -> None:
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, claim.port))


def test_a_killed_holder_leaves_nothing_behind() -> None:
    program = (
        "import sys, tempfile, time\n"
        "from lexicast.actors.broker.port_claim import claim_port\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "claim = claim_port('127.0.0.1', 0, 'theirs')\n"
        "print(claim.port, flush=True)\n"
        "time.sleep(60)\n"
    )
    source = str(Path(__file__).parents[3] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tempfile.tempdir)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        with pytest.raises(UnavailableError, match="theirs"):
            claim_port(HOST, port, "ours")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with closing(claim_port(HOST, port, "ours")) as claim:
        assert claim.port == port


@pytest.mark.skipif(os.geteuid() == 0, reason="root may bind any port")
def test_a_privileged_port_is_explained() -> None:
    with pytest.raises(UnavailableError, match="more rights"):
        claim_port(HOST, 1, "ours")


def test_an_address_of_another_machine_is_explained() -> None:
    with pytest.raises(UnavailableError, match=r"not an address of this machine: change mqtt\.host"):
        claim_port("192.0.2.77", 0, "ours")


def test_a_link_in_place_of_the_lock_file_is_not_followed(claim: PortClaim, tmp_path: Path) -> None:
    claim.close()
    lock = tmp_path / f"lexicast-mqtt-{claim.port}.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(UnavailableError, match="cannot open"):
        claim_port(HOST, claim.port, "ours")
    assert not (tmp_path / "victim").exists()


def test_link_sockets_lie_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    config = Config().replaced(node__data_dir=str(tmp_path))
    folder = run_directory(config)
    try:
        assert run_directory(config) == folder
        folder.chmod(0o755)
        with pytest.raises(UnavailableError, match="own folder"):
            run_directory(config)
    finally:
        folder.rmdir()
