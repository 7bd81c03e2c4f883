"""Addresses as users write them, and the files that `lexicast up` leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexicast.actors.client.address import DATA_DIR_VARIABLE, KEY_FILE, RUN_FILE, resolver
from lexicast.actors.link.credentials import CA_VARIABLE
from lexicast.cluster.errors import ConfigError, UnavailableError, UsageError


def test_addresses_that_are_none() -> None:
    for address in ("link:here", "link:unix:/x"):
        with pytest.raises(UsageError, match="link:unix:PATH"):
            resolver(address, None, None)
    for wrong in ("127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:x", "a..b:1883", "a" * 64 + ":1883", ":1883"):
        for key in (None, b"key"):
            with pytest.raises(UsageError, match="link:tcp:HOST:PORT"):
                resolver(f"link:tcp:{wrong}", None, key)


async def test_hosts_are_names_or_numbers() -> None:
    for host in ("127.0.0.1", "[::1]", "::1", "broker.example.com", "broker_1", "fe80::1%eth0"):
        (endpoint,) = await resolver(f"link:tls:{host}:8883", None, None)()
        assert endpoint.addresses == (f"tls:{host}:8883",)


async def test_running_cluster_is_found_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEXICAST_ADDRESS", raising=False)
    with pytest.raises(UnavailableError, match="lexicast up"):
        await resolver(None, tmp_path, None)()
    run = {"ray_address": "127.0.0.1:1", "cluster_id": "c", "brokers": {"broker-0": ["unix:/x", "tcp:127.0.0.1:9"]}}
    (tmp_path / RUN_FILE).write_text(json.dumps(run))
    (tmp_path / KEY_FILE).write_bytes(b"key")
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path))
    (endpoint,) = await resolver(None, None, None)()
    assert (endpoint.name, endpoint.addresses) == ("broker-0", ("unix:/x", "tcp:127.0.0.1:9"))
    assert (endpoint.cluster_id, endpoint.key) == ("c", b"key")
    assert "key" not in repr(endpoint)
    # Whose certificates are trusted says nothing of who logs in: this is an operator still.
    monkeypatch.setenv(CA_VARIABLE, "ca.crt")
    assert await resolver(None, None, None)() == [endpoint]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"brokers": [], "ray_address": "", "cluster_id": ""}', "\0"])
async def test_damaged_run_file_is_a_clear_error(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEXICAST_ADDRESS", raising=False)
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(ConfigError, match="stop and start"):
        await resolver(None, tmp_path, None)()
