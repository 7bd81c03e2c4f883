"""`lexicast acl check | show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.actors.cli.common import run_app
from lexicast.actors.cli.main import command_line
from lexicast.cluster.security.files import FILE_BYTES_MAX

RULES = """topic read public/#
user ada
topic readwrite plant/#
topic deny plant/secret
topic nohistory plant/now
pattern write devices/%c/#
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules"
    path.write_text(RULES)
    return path


def run(file: Path, *arguments: str) -> int:
    return run_app(command_line(["acl"]), ["acl", *arguments, "--file", str(file)])


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (["ada", "write", "plant/a"], 0, "user 'ada' may publish to plant/a"),
        (["ada", "write", "plant/secret"], 1, "user 'ada' may not publish to plant/secret"),
        (["ada", "history", "plant/now"], 1, "user 'ada' may not read the past of plant/now"),
        (["ada", "read", "plant/now"], 0, "user 'ada' may read plant/now"),
        (["", "read", "public/a"], 0, "who has not logged in may read public/a"),
        (["", "read", "public/#"], 0, "who has not logged in may read all of public/#"),
        (["", "read", "#"], 0, "who has not logged in may read a part of #"),
        (["", "read", "plant/#"], 1, "who has not logged in may read nothing of plant/#"),
        (["ada", "read", "plant/#"], 0, "user 'ada' may read a part of plant/#"),
        (["bob", "write", "devices/c1/x", "--client-id", "c1"], 0, "user 'bob' may publish to devices/c1/x"),
        (["bob", "write", "devices/c1/x"], 1, "user 'bob' may not publish to devices/c1/x"),
    ],
)
def test_check_answers_in_words_and_by_its_exit_code(
    file: Path, capsys: pytest.CaptureFixture[str], asked: list[str], code: int, said: str
) -> None:
    assert run(file, "check", *asked) == code
    assert capsys.readouterr().out == said + "\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["ada", "delete", "a"], "ask for read, write, history"),
        (["ada", "write", "a/#"], "is a filter"),
        (["ada", "read", "a/#/b"], "may only be the last one"),
        (["\udcff", "read", "a"], "is not UTF-8"),
        (["ada", "read", "a", "--client-id", "\udcff"], "is not UTF-8"),
    ],
)
def test_wrong_questions_are_wrong_usage(
    file: Path, capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    assert run(file, "check", *asked) == 2
    assert said in capsys.readouterr().err


def test_show_prints_the_rules_that_apply_denials_first(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "show", "ada") == 0
    assert [line.split("  #") for line in capsys.readouterr().out.splitlines()] == [
        ["topic deny plant/secret   ", " line 4"],
        ["topic readwrite plant/#   ", " line 3"],
        ["topic nohistory plant/now ", " line 5"],
        ["pattern write devices/%c/#", " line 6"],
    ]
    assert run(file, "show") == 0
    assert capsys.readouterr().out.splitlines() == [
        "5 rules: 1 patterns for everybody, 4 of users",
        "  pattern write devices/%c/#",
        "who has not logged in: 1",
        "'ada': 3",
    ]


def test_a_broken_file_is_told_with_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("topic read a\ntopics read b\n")
    assert run(file, "show") == 2
    assert f"{file}: line 2: 'topics' begins no rule" in capsys.readouterr().err
    with file.open("wb") as opened:
        opened.truncate(FILE_BYTES_MAX + 1)
    assert run(file, "show") == 2
    assert f"{file}: it has {FILE_BYTES_MAX + 1:,} bytes" in capsys.readouterr().err
    file.unlink()
    assert run(file, "show") == 2
    assert "No such file" in capsys.readouterr().err
