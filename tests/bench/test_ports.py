"""Ports for programs that cannot pick one: given once, whichever process asks."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from lexicast.bench.stage import ports
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.errors import UnavailableError

PROGRAM = """
from lexicast.bench.stage.ports import free_port
print(free_port(), flush=True)
input()
"""


def another() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_none_is_given_twice_to_one_process_or_to_several() -> None:
    with another() as one, another() as two:
        given = [free_port(), told(one), free_port(), told(two), free_port()]
        one.communicate("\n")
        two.communicate("\n")
    assert len(set(given)) == 5


def test_what_somebody_listens_on_is_not_given() -> None:
    with closing(socket.create_server(("127.0.0.1", free_port()))) as taken:
        assert free_port() != taken.getsockname()[1]


def test_where_all_are_taken_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(free_port(), free_port()))
    monkeypatch.setattr(ports, "check_free", _taken)
    with pytest.raises(UnavailableError, match="no port from"):
        free_port()


def _taken(host: str, port: int) -> None:
    raise UnavailableError("taken")
