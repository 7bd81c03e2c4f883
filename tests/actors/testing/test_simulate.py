"""`python -m lexicast.testing.simulate`: what it prints, writes and returns; a story is the same each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexicast.actors.testing.simulator.auditor import Violation
from lexicast.actors.testing.simulator.breaks import BREAKS
from lexicast.actors.testing.simulator.command import Interrupts, main
from lexicast.actors.testing.simulator.story import run
from lexicast.actors.testing.simulator.transcript import Transcript

COMMAND = [sys.executable, "-m", "lexicast.testing.simulate"]
# Seen by the very first stories.
EASY = "acknowledge-early"
EASY_SEED = 3


def test_stories_are_summed_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert main(["--seeds", "2", "--first", "4", "--processes", "1", "--json", str(figures)]) == 0
    assert "2 stories, 0 with a violation" in capsys.readouterr().out
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert (told["first"], told["runs"], told["violations"], told["violated"]) == (4, 2, 0, {})


def test_a_violation_tells_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first", str(EASY_SEED), "--processes", "1", "--break", EASY, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["violations"] == 1
    replay = next(line for line in printed.err.splitlines() if "replay: " in line).split("replay: ")[1]
    assert replay.startswith("python -m lexicast.testing.simulate ")
    assert main(replay.split()[3:]) == 1
    transcript = capsys.readouterr().out
    assert "VIOLATION" in transcript
    assert "mishap" in transcript or "is killed" in transcript
    assert "coordinator-0" in transcript


def test_a_story_is_the_same_each_time() -> None:
    texts = []
    for _ in range(2):
        transcript = Transcript(keeps=True)
        with pytest.raises(Violation):
            run(EASY_SEED, BREAKS[EASY], transcript)
        texts.append(transcript.text())
    assert texts[0] == texts[1]


def test_a_story_with_matchers_is_the_same_whatever_hashes_are(tmp_path: Path) -> None:
    texts = []
    for hashes in ("1", "2"):
        told = tmp_path / hashes
        command = [*COMMAND, "--seed", "3000004", "--transcript", str(told)]
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        subprocess.run(command, check=True, capture_output=True, timeout=200, env=environment)
        texts.append(told.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    assert "matcher-" in texts[0]


def test_processes_share_the_seeds_and_a_hash_seed_changes_nothing() -> None:
    arguments = ["--seeds", "12", "--break", EASY, "--json"]
    found = []
    for processes, hashes in (("2", "1"), ("1", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        command = [*COMMAND, *arguments, "--processes", processes]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
        assert done.returncode == 1, done.stderr
        found.append(json.loads(done.stdout)["violated"])
    assert found[0] == found[1]
    assert found[0]


def test_ctrl_c_tells_what_was_played() -> None:
    child = subprocess.Popen(
        [*COMMAND, "--seeds", "100000", "--processes", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(4)
    child.send_signal(signal.SIGINT)
    out, error = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "of 100000, stopped by Ctrl-C" in out
    assert "Traceback" not in error


def test_ctrl_c_ends_it_after_the_story_and_a_second_one_at_once() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "arguments",
    [["--transcript"], ["--breaks", "--seed", "1"], ["--seeds", "0"], ["--first", "-1"], ["--break", "everything"]],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
