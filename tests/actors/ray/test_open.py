"""A Ray that asks for no token obeys whoever reaches it: `lexicast up` refuses it, or says so where it is wanted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.launch.ray_nodes import check_closed
from lexicast.actors.ray.address import check_ray, is_open
from lexicast.actors.ray.token import MODE_VARIABLE, TOKEN_VARIABLES
from lexicast.cluster.errors import UnavailableError

grpc: Any = import_module("grpc")


@contextmanager
def head(refuse: bool) -> Iterator[str]:
    """The address of a gRPC server that answers everything like a GCS: open, or asking for a token."""

    class Gcs(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, call: Any) -> Any:
            def answer(request: bytes, context: Any) -> bytes:
                if refuse:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Gcs(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_who_asks_for_a_token_is_closed() -> None:
    with head(refuse=True) as address:
        assert check_ray(address) == address
        assert not is_open(address)
        assert check_closed(address) == ""


@pytest.mark.cve("CVE-2023-48022")
def test_an_open_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODE_VARIABLE, raising=False)
    with head(refuse=False) as address:
        assert is_open(address)
        with pytest.raises(UnavailableError, match=r"asks for no token.*RAY_AUTH_MODE=token.*RAY_AUTH_MODE=disabled"):
            check_closed(address)


def test_an_open_one_that_is_wanted_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "disabled")
    with head(refuse=False) as address:
        assert "whoever reaches it runs code as its user" in check_closed(address)


def test_nobody_is_not_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert not is_open(address)


def test_up_refuses_it_in_one_line(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in (MODE_VARIABLE, *TOKEN_VARIABLES)}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "lexicast.actors.cli", "up", "--mqtt-port", "0", "--data-dir", str(tmp_path / "d")]
    with head(refuse=False) as address:
        ended = subprocess.run(
            [*command, "--address", address], capture_output=True, text=True, env=environment, check=False, timeout=60
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"lexicast: the Ray at {address} asks for no token")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("source", ["found", "given"])
def test_only_a_ray_found_on_this_machine_is_shown_the_token(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[None] = []
    with head(refuse=True) as address:
        monkeypatch.setattr("lexicast.actors.ray.address.get_ray_address_from_environment", lambda *_: address)
        monkeypatch.setattr("lexicast.actors.ray.address.use_own_token", lambda: shown.append(None))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if source == "given":
            monkeypatch.setenv("RAY_ADDRESS", address)
        assert check_ray("auto") == address
    assert len(shown) == (source == "found")
