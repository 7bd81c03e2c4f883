"""The same acl and password files in Mosquitto and here: who may do what, asked at random.

    acl_disagreements    answers to (user, topic, action) that differ
    acl_questions        how many were asked

Mosquitto answers as a broker: it runs with the files, users log in, publish (the reason code of PUBACK is the answer)
and listen to `#` while somebody who may everything publishes (what comes is the answer). Here `AccessRules` answers,
which is what brokers ask. Not asked: names with a '/' in them, for which patterns are stricter here (docs/security.md).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.cluster.security.acl_file import READ, WRITE
from lexicast.cluster.security.rules import AccessRules

from .. import report as reports
from ..peers.targets import TargetMissingError
from ..report import DriverReport
from ..stage.ports import free_port
from ..stage.servers import Address, Target, spawn_child, wait_until
from .asked_clients import AskedClient

QUESTIONS: Final = 10_000
QUICK_QUESTIONS: Final = 2_000
# Of a file; then comes another one.
TOPICS_A_FILE: Final = 40
# Who publishes what others are to hear; its own rules come before all patterns.
ROOT: Final = "root"
PASSWORD: Final = "a secret"
# (user, client id); ids differ, since a second connection with one would end the first.
CLIENTS: Final = (
    ("", "c1"),
    ("", "ada"),
    ("ada", "c2"),
    ("ada", "bob"),
    ("bob", "x-y"),
    ("x-y", "a"),
    ("two words", "c 3"),
    ("a+b", "c4"),
    ("bob", "c#5"),
    ("%u", "%c"),
)
LEVELS: Final = ("a", "b", "", "ada", "bob", "c1", "c2", "x-y", "a-ada", "c 3", "%u", "%c", "a b")
FIRST_LEVELS: Final = (*LEVELS, "$x", "$y")
RULE_LEVELS: Final = (*LEVELS, "+", "+", "%u", "%c", "a-%u", "%u%c", "%c-b")


class AclQuestion(NamedTuple):
    """Whether a client may do something (READ, WRITE) with a topic."""

    user: str
    client_id: str
    action: int
    topic: bytes


def measure_acl(report: DriverReport) -> None:
    """Everything of this part. Of the options it takes quick."""
    wanted = QUICK_QUESTIONS if report.options.quick else QUESTIONS
    chosen = random.Random(1)
    asked = differing = 0
    a_file = 2 * TOPICS_A_FILE * len(CLIENTS)
    try:
        with reports.Steps(report.console, -(-wanted // a_file)) as progress:
            while asked < wanted:
                progress.step(f"{asked:,} questions")
                text = acl_text(chosen)
                answers = answers_of_mosquitto(text, topics(chosen, TOPICS_A_FILE))
                wrong = disagreements(text, answers)
                for question, answer in wrong[:3]:
                    report.problem(f"{question}: Mosquitto says {answer}, by the rules\n{text}")
                asked, differing = asked + len(answers), differing + len(wrong)
    except TargetMissingError as error:
        report.missing("mosquitto", str(error))
    report.figure("acl_questions", asked)
    report.figure("acl_disagreements", differing if asked else None)


def disagreements(text: str, answers: dict[AclQuestion, bool]) -> list[tuple[AclQuestion, bool]]:
    """The questions that these rules answer otherwise, with Mosquitto's answers."""
    rules = AccessRules.of_text(text)
    return [(question, answer) for question, answer in answers.items() if rules.may(*question) != answer]


def acl_text(chosen: random.Random) -> str:
    """An acl file with rules of all kinds."""
    lines = []
    for _ in range(chosen.randrange(1, 30)):
        if not chosen.randrange(4):
            lines.append(f"user {chosen.choice(CLIENTS)[0] or 'nobody'}")
        kind, name = chosen.choice(("topic", "topic", "pattern")), _filter(chosen)
        word = chosen.choice(("read ", "write ", "readwrite ", "deny ", ""))
        lines.append(f"{kind} {word or ('readwrite ' if ' ' in name else '')}{name}")
    return "\n".join([*lines, f"user {ROOT}", "topic readwrite #", "topic readwrite $x/#", "topic $y/#", ""])


def _filter(chosen: random.Random) -> str:
    first = chosen.choice((*RULE_LEVELS, "$x", "$y"))
    levels = [first, *chosen.choices(RULE_LEVELS, k=chosen.randrange(3))]
    if not chosen.randrange(3):
        levels[chosen.randrange(2) if len(levels) > 1 else 0 :] = ["#"]
    return "/".join(levels) or "a"


def topics(chosen: random.Random, count: int) -> list[bytes]:
    """So many that may be published to."""
    found: dict[bytes, None] = {}
    while len(found) < count:
        levels = [chosen.choice(FIRST_LEVELS), *chosen.choices(LEVELS, k=chosen.randrange(4))]
        found[("/".join(levels) or "a").encode()] = None
    return list(found)


def answers_of_mosquitto(text: str, names: list[bytes]) -> dict[AclQuestion, bool]:
    """What Mosquitto lets clients do with these topics by an acl file. Raises TargetMissingError, PeerError."""
    with _mosquitto(text) as address, contextlib.ExitStack() as stack:

        def connected(user: str, client_id: str) -> AskedClient:
            client = AskedClient(address, user, PASSWORD, client_id)
            stack.callback(client.close)
            return client

        found: dict[AclQuestion, bool] = {}
        root = connected(ROOT, ROOT)
        clients = [connected(user, client_id) for user, client_id in CLIENTS]
        for client in clients:
            for name in names:
                found[AclQuestion(client.user, client.client_id, WRITE, name)] = client.may_publish(name)
        for client in clients:
            client.listen(b"#", b"$x/#", b"$y/#")
        for name in names:
            root.may_publish(name)
        for client in clients:
            heard = set(client.heard())
            for name in names:
                found[AclQuestion(client.user, client.client_id, READ, name)] = name in heard
        return found


@contextlib.contextmanager
def _mosquitto(acl: str) -> Iterator[Address]:
    executable = shutil.which("mosquitto", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if executable is None or shutil.which("mosquitto_passwd") is None:
        raise TargetMissingError("mosquitto not found: apt-get install mosquitto")
    with tempfile.TemporaryDirectory(prefix="lexicast-bench-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)
        passwords, rules = directory / "passwords", directory / "rules"
        passwords.touch()
        for user in sorted({ROOT, *[user for user, _ in CLIENTS if user]}):
            subprocess.run(["mosquitto_passwd", "-b", str(passwords), user, PASSWORD], check=True, capture_output=True)
        rules.write_text(acl)
        for file in (passwords, rules):
            file.chmod(0o644)  # started as root, it reads them as the user mosquitto
        port, config = free_port(), directory / "mosquitto.conf"
        # Not `start_mosquitto`: with its limits off, 2.0.11 ends a connection after its first refused publication (what
        # it takes at once is counted up by every refusal, from 65,535 to 0).
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n"
            f"password_file {passwords}\nacl_file {rules}\n"
        )
        config.chmod(0o644)
        log = directory / "mosquitto.log"
        target = Target("mosquitto", Address("127.0.0.1", port), spawn_child([executable, "-c", str(config)], log), log)
        try:
            wait_until(target, lambda: _listens(target.address))
            yield target.address
        finally:
            target.stop()


def _listens(address: Address) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), 1.0):
        return True
    return False
