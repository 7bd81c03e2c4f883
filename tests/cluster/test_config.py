"""The configuration: its sources, its errors, and that `lexicast.toml` tells the truth."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.config.knobs import kind_of
from lexicast.cluster.config.tables import TABLES, Config, MqttConfig, NodeConfig, default_text, load_config
from lexicast.cluster.errors import ConfigError
from lexicast.storage.environment.options import StoreOptions

KNOBS = [(table, key) for table, keys in TABLES.items() for key in keys]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder without a lexicast.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_documented_file_is_exactly_the_defaults() -> None:
    documented = tomllib.loads(default_text())
    assert documented == Config().as_dict()
    assert [(table, key) for table, keys in documented.items() for key in keys] == KNOBS, "in the same order"


def test_every_knob_is_explained_with_its_range() -> None:
    table = comment = ""
    for line in default_text().splitlines():
        if line.startswith("#"):
            comment += line.removeprefix("#")
            continue
        if line.startswith("["):
            table = line.strip("[]")
        elif line:
            key = line.split(" = ")[0]
            assert len(comment) > 40, f"{table}.{key} is not explained"
            assert says_the_range(comment, table, key), f"{table}.{key}: the comment does not say what is allowed"
        comment = ""


def says_the_range(comment: str, table: str, key: str) -> bool:
    """Whether the comment names every choice or both limits (large ones may be given in words)."""
    metadata = TABLES[table][key].metadata
    if metadata["choices"]:
        return all(f'"{choice}"' in comment for choice in metadata["choices"])
    limits = [limit for limit in (metadata["low"], metadata["high"]) if limit is not None]
    return all(
        re.search(rf"\b{limit:g}\b|\b{limit}\b", comment) or re.search(r"[KMGT]iB|years", comment) for limit in limits
    )


def test_later_sources_override_earlier_ones_knob_by_knob(elsewhere: Path) -> None:
    (elsewhere / "lexicast.toml").write_text("[mqtt]\nport = 1\nreceive_max = 1\ninflight_max = 1\n")
    environment = {"LEXICAST_MQTT__PORT": "2", "LEXICAST_MQTT__RECEIVE_MAX": "2", "LEXICAST_HOME": "x", "PATH": "y"}
    config = load_config(environment=environment, overrides={"mqtt.port": 3})
    assert (config.mqtt.port, config.mqtt.receive_max, config.mqtt.inflight_max) == (3, 2, 1)
    assert config == Config(mqtt=MqttConfig(port=3, receive_max=2, inflight_max=1))


def test_the_file_may_be_named(elsewhere: Path) -> None:
    (elsewhere / "lexicast.toml").write_text("[mqtt]\nport = 1\n")
    (elsewhere / "two.toml").write_text("[mqtt]\nport = 2\n")
    assert load_config(environment={"LEXICAST_CONFIG": "two.toml"}).mqtt.port == 2
    assert load_config(elsewhere / "lexicast.toml", {"LEXICAST_CONFIG": "two.toml"}).mqtt.port == 1


@pytest.mark.parametrize(
    ("dotted", "text", "value"),
    [
        ("mqtt.port", "1_884", 1884),
        ("link.request_timeout_s", "2", 2.0),
        ("compression.enabled", "false", False),
        ("compression.families", "a/+, b", ("a/+", "b")),
        ("compression.families", '["a,b"]', ("a,b",)),
        ("compression.families", "", ()),
        ("node.host", "::1", "::1"),
        ("node.data_dir", "7", "7"),
    ],
)
def test_texts_become_values(dotted: str, text: str, value: Any) -> None:
    name = "LEXICAST_" + dotted.replace(".", "__").upper()
    assert load_config(environment={name: text})[dotted] == value
    assert load_config(environment={}, overrides={dotted: text})[dotted] == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[mqtt]\nprot = 1\n", r"unknown key mqtt\.prot \(.*f\.toml\): did you mean mqtt\.port\?"),
        ("[mqt]\nport = 1\n", r"unknown table \[mqt\] \(.*f\.toml\): did you mean mqtt\?"),
        ("[node]\nport = 1\n", r"unknown key node\.port .*did you mean mqtt\.port\?"),
        ("port = 1\n", r"port .*is no table: a key stands below"),
        ("[mqtt]\nport = 70000\n", r"mqtt\.port = 70000 \(.*f\.toml\): it must be a whole number from 0 to 65_535"),
        ("[mqtt]\nport = '1'\n", r"mqtt\.port = '1' \(.*\): it must be a whole number"),
        ("[mqtt]\nport = true\n", r"mqtt\.port = True .*whole number"),
        ("[mqtt]\nport = 1.0\n", r"mqtt\.port = 1\.0 .*whole number"),
        ("[mqtt]\nslow_qos0 = 'wait'\n", r'one of "catch-up", "drop"'),
        ("[compression]\nenabled = 1\n", r"true or false"),
        ("[compression]\nfamilies = 'a'\n", r"a list of texts"),
        ("[compression]\nfamilies = [1]\n", r"a list of texts"),
        ("[broker]\nsession_save_s = nan\n", r"a number from 0\.01 to 3_600"),
        (
            "[link]\nbatch_bytes_max = 9_000_000\n",
            r"link\.batch_bytes_max = 9000000 is more than link\.queue_bytes_max",
        ),
        (
            "[cluster]\ncopies = 2\nmin_copies = 3\n",
            r"cluster\.min_copies = 3 is more than cluster\.copies = 2: nothing would ever be acknowledged",
        ),
        ("[mqtt\n", r"f\.toml is no TOML file: .*line 1"),
    ],
)
def test_errors_say_what_and_where_and_what_is_allowed(elsewhere: Path, text: str, says: str) -> None:
    file = elsewhere / "f.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(file, {})
    assert "\n" not in str(caught.value)


def test_errors_name_the_environment_and_the_command_line(elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(environment variable LEXICAST_MQTT__PORT\)"):
        load_config(environment={"LEXICAST_MQTT__PORT": "x"})
    with pytest.raises(ConfigError, match=r"LEXICAST_MQTT__PROT\): did you mean mqtt\.port"):
        load_config(environment={"LEXICAST_MQTT__PROT": "1"})
    with pytest.raises(ConfigError, match=r"\(command line\)"):
        load_config(environment={}, overrides={"mqtt.port": -1})
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(elsewhere / "none.toml", {})


@given(
    st.sampled_from(KNOBS), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())
)
def test_any_value_is_taken_or_refused_with_a_config_error(knob: tuple[str, str], value: Any) -> None:
    table, key = knob
    try:
        config = Config.from_dict({table: {key: value}})
    except ConfigError:
        return
    taken = config[f"{table}.{key}"]
    assert isinstance(taken, kind_of(TABLES[table][key]))
    assert (list(taken) if isinstance(taken, tuple) else taken) == value


def test_plain_dicts_go_to_json_and_back() -> None:
    config = Config().replaced(mqtt__port=0, compression__families=["a/+"])
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert config.compression.families == ("a/+",)
    with pytest.raises(ConfigError, match="did you mean"):
        config.replaced(mqtt__prot=0)


def test_tables_made_by_hand_are_checked_and_frozen() -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.port"):
        MqttConfig(port=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        MqttConfig().port = 1  # type: ignore[misc]  # what the test is about


def test_every_knob_with_a_quantity_has_its_unit_in_the_name() -> None:
    for table, key in KNOBS:
        if kind_of(TABLES[table][key]) is float:
            assert key.endswith("_s"), f"{table}.{key}: seconds are the only fractions"
        if kind_of(TABLES[table][key]) in (int, float):
            assert TABLES[table][key].metadata["low"] is not None, f"{table}.{key} has no range"
            assert TABLES[table][key].metadata["high"] is not None, f"{table}.{key} has no range"


def test_the_stores_knobs_are_the_stores_own() -> None:
    assert StoreOptions(**Config().storage.options()) == StoreOptions()
    assert Config().replaced(storage__retention_bytes=0).storage.options()["retention_bytes"] == 0


def test_the_data_folder_follows_the_users(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert NodeConfig().data_path() == elsewhere / "home/.local/share/lexicast"
    monkeypatch.setenv("XDG_DATA_HOME", str(elsewhere / "xdg"))
    assert NodeConfig().data_path() == elsewhere / "xdg/lexicast"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert NodeConfig().data_path() == elsewhere / "home/.local/share/lexicast"
    assert NodeConfig(data_dir="~/d").data_path() == elsewhere / "home/d"
    assert NodeConfig(data_dir="d").data_path() == elsewhere / "d"


def test_the_default_text_is_found_from_another_folder(elsewhere: Path) -> None:
    code = "from lexicast.cluster.config.tables import default_text; print(default_text(), end='')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == default_text()
