"""Points in time, properties and addresses as users write them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lexicast
import lexicast.mqtt as lexicast_mqtt
from lexicast import sync
from lexicast.actors.client.address import DATA_DIR_VARIABLE, KEY_FILE, RUN_FILE, resolver
from lexicast.actors.client.messages import (
    Properties,
    pack_properties,
    parse_cursor,
    parse_duration,
    parse_since,
    parse_time,
    unpack_properties,
    utc,
)
from lexicast.cluster.errors import ConfigError, UnavailableError, UsageError
from lexicast.cluster.positions import Position

NOW_US = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("2d", 172_800), ("1.5s", 1.5), ("1w", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert parse_time(text, NOW_US) == NOW_US - round(seconds * 1e6)


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "10x", "1h-3m", "10m "])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("when", "time_us"),
    [
        ("now", NOW_US),
        ("beginning", 0),
        (1_000_000_001.5, 1_000_000_001_500_000),
        (1_000_000_000, 1_000_000_000_000_000),
        (timedelta(seconds=2), NOW_US - 2_000_000),
        (timedelta(days=100_000), 0),
        (datetime(2001, 9, 9, 1, 46, 40, 5, tzinfo=UTC), 1_000_000_000_000_005),
        ("2001-09-09T03:46:40+02:00", 1_000_000_000_000_000),
        ("2001-09-09 01:46:40Z", 1_000_000_000_000_000),
    ],
)
def test_times(when: Any, time_us: int) -> None:
    assert parse_time(when, NOW_US) == time_us
    assert utc(time_us).timestamp() == pytest.approx(time_us / 1e6)


@pytest.mark.parametrize("when", ["yesterday", "", "10 m", -1.0, float("nan"), float("inf"), True, None, [], 1e300])
def test_no_times(when: Any) -> None:
    with pytest.raises(UsageError, match="no point in time"):
        parse_time(when, NOW_US)


@pytest.mark.parametrize("when", [0, 10, 1.5, 999_999_999])
def test_a_number_that_may_be_a_duration_is_refused(when: float) -> None:
    for parse in (lambda: parse_time(when, NOW_US), lambda: parse_since(when, NOW_US, 3)):
        with pytest.raises(UsageError, match=r"may be a duration.* for so long ago"):
            parse()


def test_since() -> None:
    assert parse_since(None, NOW_US, 3) is None
    assert parse_since(Position(3, 9, 41), NOW_US, 3) == ("cursor", {3: 42})
    assert parse_since("3:9:41", NOW_US, 3) == ("cursor", {3: 42})
    assert parse_since({"3": 42, "4": 0}, NOW_US, None) == ("cursor", {3: 42, 4: 0})
    assert parse_since(json.loads(json.dumps({3: 42})), NOW_US, None) == ("cursor", {3: 42})
    assert parse_since("10m", NOW_US, None) == ("time", NOW_US - 600_000_000)
    for wrong in ({"a": 1}, {1: -1}, {1: None}):
        with pytest.raises(UsageError, match="not a cursor"):
            parse_cursor(wrong)


def test_properties_there_and_back() -> None:
    properties = Properties((("a", "1"), ("a", "2")), "text/plain", "answer/here", b"\0\xff", True)
    packed = pack_properties(properties)
    assert packed is not None
    assert list(packed) == sorted(packed)
    assert unpack_properties({**packed, 999: "unknown"}) == properties
    assert properties.get("a") == "1"
    assert properties.get("b", "none") == "none"
    assert pack_properties({}) is None
    assert pack_properties(None) is None
    assert unpack_properties(None) is None


# -- addresses


def test_addresses_that_are_none() -> None:
    for address in ("link:here", "link:unix:/x"):
        with pytest.raises(UsageError, match="link:unix:PATH"):
            resolver(address, None, None)


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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"brokers": [], "ray_address": "", "cluster_id": ""}', "\0"])
async def test_damaged_run_file_is_a_clear_error(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEXICAST_ADDRESS", raising=False)
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(ConfigError, match="stop and start"):
        await resolver(None, tmp_path, None)()


def test_importing_lexicast_loads_neither_ray_nor_the_client() -> None:
    code = """
import sys, lexicast, lexicast.cluster.blocks
assert not {"ray", "lexicast.actors.client.client", "asyncio"} & set(sys.modules), "loaded too early"
assert all(hasattr(lexicast, name) for name in lexicast.__all__)
assert "ray" not in sys.modules, "the client loads Ray"
"""
    paths = ["-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"]
    subprocess.run([sys.executable, *paths], check=True)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = getattr(lexicast, "nothing")  # noqa: B009  # a checker would refuse lexicast.nothing


def test_dir_lists_what_there_is_before_it_is_loaded() -> None:
    code = "import lexicast; assert {*lexicast.__all__, 'history', 'spark_session'} <= set(dir(lexicast))"
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], check=True)


@pytest.mark.parametrize("module", [lexicast, lexicast_mqtt])
def test_type_checkers_see_every_name_and_no_others(module: ModuleType) -> None:
    """A `__getattr__` that they see makes `lexicast.conect` a valid expression."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    if module is lexicast:
        shown = next(node for node in tree.body if isinstance(node, ast.If))
        names = {alias.asname for node in shown.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert names == {*lexicast.__all__, "history", "spark_session"} - {"__version__"}


def test_errors_that_docstrings_name_are_exported() -> None:
    told: list[object] = [lexicast.connect, sync.connect]
    for cls in (lexicast.Client, lexicast.Subscription, sync.SyncClient, sync.SyncSubscription):
        told += [cls, *[getattr(member, "fget", member) for name, member in vars(cls).items() if name[0] != "_"]]
    named = {word for item in told for word in re.findall(r"\b[A-Z]\w+Error\b", inspect.getdoc(item) or "")}
    assert len(named) > 5
    assert named <= set(lexicast.__all__)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(user=(("unit", "km\0"),)),
        Properties(user=(("x" * 65_536, ""),)),
        Properties(content_type=7),  # type: ignore[arg-type]  # a wrong type is what it is about
        Properties(correlation_data=b"x" * 65_536),
    ],
)
def test_properties_that_nobody_could_be_sent_are_refused(properties: Properties) -> None:
    """A broker would refuse the publication, since no MQTT packet can carry them."""
    with pytest.raises(UsageError):
        pack_properties(properties)


def test_help_shows_what_users_use() -> None:
    assert [name for name in vars(lexicast.Client) if name[0] != "_"] == [
        *("open", "close", "client_id", "publish", "publish_many", "publish_nowait", "flush", "dictionaries"),
        *("subscribe", "history", "status", "broker", "broker_name", "statistics"),
    ]
