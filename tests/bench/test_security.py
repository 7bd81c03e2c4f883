"""The security driver's parts, in small: Mosquitto's answers beside ours, and the driver from end to end."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from lexicast.bench.security import acl, driver
from lexicast.bench.security.rules import rules_text
from lexicast.cluster.security.acl_file import READ, WRITE
from lexicast.cluster.security.rules import AccessRules

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


@needs_mosquitto
def test_the_driver_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(acl, "QUICK_QUESTIONS", 400)
    assert driver.main(["--only", "acl", "--quick", "--json", str(tmp_path / "told.json")]) == 0
    figures = json.loads((tmp_path / "told.json").read_text())["figures"]
    assert figures["acl_questions"] == 800
    assert figures["acl_disagreements"] == 0
