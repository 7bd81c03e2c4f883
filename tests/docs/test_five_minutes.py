"""README's five minutes, as they stand there: every command is run in its order and says what is printed under it.

The blocks of the section are taken as somebody with a new home folder would type them: `lexicast up` stays in one
terminal, each other shell block is a bash of its own, a Python block a program. The `text` block that follows is the
output, but for what is another one each time (`VOLATILE`); a line `...` stands for any further ones. Only ports are
ours, so that nobody else's broker is in the way: LEXICAST_MQTT__PORT, and the files of options that mosquitto_pub and
mosquitto_sub read.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTION = "Five minutes"
MUST_SHOW = ("up", "pub", "sub", "history", "status", "down")
TIMEOUT_S = 120.0

# What differs from run to run: ids, ports, addresses, folders, times, rates, process ids, positions.
VOLATILE = [
    (r"cluster [0-9a-f]{8}\b", "cluster ID"),
    (r"(mqtt://127\.0\.0\.1):\d+", r"\1:PORT"),
    (r"(?m)^(  data     )/\S+$", r"\1FOLDER"),
    (r"(?m)^(  Ray      )\S+,", r"\1ADDRESS,"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", "TIME"),
    (r"\bup \d+ s\b", "up SPAN"),
    (r"\b[\d,]+/s\b", "RATE"),
    (r"(?m)\b(\d+):\d+:\d+(?= |$)", r"\1:EPOCH:OFFSET"),
]


class Step(NamedTuple):
    """A block to run and what it prints; `line` is where it stands in README."""

    language: str
    content: str
    output: str | None
    line: int


def steps(readme: str) -> list[Step]:
    """The blocks of the section that are run."""
    start = readme.index(f"\n## {SECTION}\n") + 1
    section = readme[start : readme.index("\n## ", start)]
    found: list[Step] = []
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S):
        line = readme[: start + block.start()].count("\n") + 1
        if block[1] == "text":
            assert found, f"README.md:{line}: an output before any command"
            assert found[-1].output is None, f"README.md:{line}: a second output of one block"
            found[-1] = found[-1]._replace(output=block[2])
        else:
            found.append(Step(block[1], block[2], None, line))
    return found


def settled(output: str) -> list[str]:
    """Lines without what is another one each time."""
    for pattern, word in VOLATILE:
        output = re.sub(pattern, word, output)
    return output.splitlines()


def says(output: str, expected: str) -> bool:
    """Whether an output is the expected one."""
    got, wanted = settled(output), settled(expected)
    if wanted[-1] == "...":
        return got[: len(wanted) - 1] == wanted[:-1]
    return got == wanted


class Home:
    """A new user's home folder, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._up: subprocess.Popen[str] | None = None
        self._up_output = folder / "up.txt"
        programs = folder / "bin"
        programs.mkdir()
        script = programs / "lexicast"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lexicast.actors.cli "$@"\n')
        script.chmod(0o700)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = folder / ".config"
        options.mkdir()
        for client in ("mosquitto_pub", "mosquitto_sub"):
            (options / client).write_text(f"-p {port}\n")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LEXICAST_", "RAY_", "XDG_")) or name in ("RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED")
        }
        self._environment = {
            **inherited,
            "HOME": str(folder),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)]),
            "LEXICAST_MQTT__PORT": str(port),
            "COLUMNS": "160",
        }

    def take(self, step: Step) -> None:
        """Do what a block says, and compare."""
        is_first_terminal = step.content.startswith("lexicast up")
        output = self._start(step) if is_first_terminal else self._run(step)
        where = f"README.md:{step.line}:\n{step.content}\nprinted:\n{output}"
        assert step.output is None or says(output, step.output), f"{where}\nand not:\n{step.output}"

    def _start(self, step: Step) -> str:
        """The first terminal: what it has printed once it has come to the last line that is expected."""
        with self._up_output.open("w") as output:
            self._up = self._popen(["bash", "-c", f"exec {step.content}"], output)
        assert step.output is not None
        last = settled(step.output)[-1]
        until = time.monotonic() + TIMEOUT_S
        while last not in settled(printed := self._up_output.read_text()):
            assert self._up.poll() is None, printed
            assert time.monotonic() < until, printed
            time.sleep(0.1)
        return printed

    def _run(self, step: Step) -> str:
        if step.language == "python":
            command = [sys.executable, "-c", step.content]
        else:
            assert step.language == "sh", f"README.md:{step.line}: nobody knows how to run {step.language!r}"
            # What runs in the background is part of it; it ends by itself, and well.
            command = ["bash", "-e", "-c", f'{step.content}for job in $(jobs -p); do wait "$job"; done']
        process = self._popen(command, subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        where = f"README.md:{step.line}:\n{step.content}"
        assert process.returncode == 0, f"{where}\nended with {process.returncode}:\n{output}"
        return str(output)

    def _popen(self, command: list[str], output: IO[str] | int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=self.folder,
        )

    def stopped(self) -> int:
        """The exit code of the first terminal's command, which something else has stopped."""
        assert self._up is not None
        return self._up.wait(TIMEOUT_S)

    def close(self) -> None:
        """Stop what still runs."""
        if self._up is not None and self._up.poll() is None:
            self._up.terminate()
            self._up.wait(TIMEOUT_S)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="mosquitto-clients is not installed")
def test_the_five_minutes_are_as_they_stand_there(home: Home) -> None:
    found = steps((ROOT / "README.md").read_text(encoding="utf-8"))
    shown = {words for step in found for words in re.findall(r"^lexicast (\w+)", step.content, re.M)}
    assert shown >= set(MUST_SHOW), f"README no longer shows {', '.join(sorted(set(MUST_SHOW) - shown))}"
    for step in found:
        home.take(step)
    assert home.stopped() == 0


def test_an_output_is_compared_to_the_letter_but_for_what_is_another_one_each_time() -> None:
    assert says("flights/JFK 5:2:17 x\nup 12 s\n", "flights/JFK 5:1:1 x\nup 9 s\n")
    assert says("first\nmore\nand more\n", "first\n...\n")
    assert not says("first\nmore\n", "first\n")
    assert not says('{"delay": 6}\n', '{"delay": 5}\n')
    assert not says("flights/JFK 6:1:1 x\n", "flights/JFK 5:1:1 x\n")
