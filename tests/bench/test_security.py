"""The security driver's parts, in small: Mosquitto's answers beside ours, and the driver from end to end."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from lexicast.bench.peers.wire import RefusedError
from lexicast.bench.security import acl, driver, reconnect
from lexicast.bench.security.rules import rules_text
from lexicast.bench.stage.servers import Address
from lexicast.cluster.security.acl_file import READ, WRITE
from lexicast.cluster.security.rules import AccessRules

from ..support.mqtt_harness import HOST, served

needs_mosquitto = pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="apt-get install mosquitto")


@needs_mosquitto
@pytest.mark.parametrize("seed", range(3))
def test_mosquitto_answers_as_the_rules_do(seed: int) -> None:
    chosen = random.Random(1_000 + seed)
    text = acl.acl_text(chosen)
    answers = acl.answers_of_mosquitto(text, acl.topics(chosen, 20))
    assert len(answers) > 100
    assert any(answers.values())
    assert acl.disagreements(text, answers) == [], text


@needs_mosquitto
def test_a_disagreement_is_seen() -> None:
    answers = acl.answers_of_mosquitto(f"topic read a\nuser {acl.ROOT}\ntopic #", [b"a"])
    assert {question for question, answer in answers.items() if answer} == {
        acl.AclQuestion("", "c1", READ, b"a"),
        acl.AclQuestion("", "ada", READ, b"a"),
    }
    differing = acl.disagreements("topic write a", answers)
    assert {(question.client_id, question.action) for question, _ in differing} == {
        (client_id, action) for client_id in ("c1", "ada") for action in (READ, WRITE)
    }


def test_the_measured_rules_let_the_generator_through_and_are_5_000_beside() -> None:
    rules = AccessRules.of_text(rules_text())
    assert len(rules) >= 5_000
    assert rules.rights("", "bench-1", b"bench/fanout_1") & (READ | WRITE) == READ | WRITE
    assert rules.rights("user-7", "x", b"site-7/user-7/part-4/a") & WRITE
    assert not rules.rights("user-8", "x", b"site-7/user-7/part-4/a")


def test_devices_come_back_at_once_and_others_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(reconnect, "QUICK_DEVICES", 50)
    told = tmp_path / "told.json"
    assert driver.main(["--only", "reconnect", "--quick", "--rounds", "1", "--json", str(told)]) == 0
    figures = json.loads(told.read_text())["figures"]
    assert 0 < figures["reconnect_50_s"] < 30
    assert figures["reconnect_others_p99_ms"] > 0
    assert figures["reconnect_before_p99_ms"] > 0


def test_who_is_refused_is_no_device_that_came_back() -> None:
    with served(passwords=reconnect.LoggedInDevices(3).password_file().encode()) as running:
        others = reconnect.LoggedInDevices(3)
        with pytest.raises(RefusedError, match="refused a device"):
            others.come(Address(HOST, running.port))
        others.vanish()


@needs_mosquitto
def test_the_driver_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(acl, "QUICK_QUESTIONS", 400)
    assert driver.main(["--only", "acl", "--quick", "--json", str(tmp_path / "told.json")]) == 0
    figures = json.loads((tmp_path / "told.json").read_text())["figures"]
    assert figures["acl_questions"] == 800
    assert figures["acl_disagreements"] == 0
