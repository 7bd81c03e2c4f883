"""What README and the pages of docs/ name exists: links, commands and their options, modules, knobs, files, targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

import lexicast
from lexicast.actors.cli.main import command_line
from lexicast.cluster.config.tables import ENVIRONMENT_PREFIX, TABLES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ROOMS = ("actors", "bench", "cluster", "compression", "raydp_jobs", "storage")
DOCS = sorted((ROOT / "docs").rglob("*.md"))
# README is the ground floor: what is lexicast, can I have it, what does it promise. Everything else has a page.
README_LINES_MAX = 155

every_page = pytest.mark.parametrize("path", [README, *DOCS, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.name))


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in one of `languages`."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [content for language, content in found if language in languages]


def spans(text: str) -> list[str]:
    """The code spans outside of fenced blocks, with line breaks as blanks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def command_lines(text: str) -> Iterator[list[str]]:
    """Commands of shell blocks and code spans, as words; of a block's line the part before a pipe or a redirection."""
    for block in blocks(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(\w+=\S+ )*(lexicast|python|make) ", line):
                yield command_of(line)
    for span in spans(text):
        if re.match(r"(\w+=\S+ )*(lexicast|python|make) ", span):
            yield shlex.split(re.sub(r"^(\w+=\S+ )*", "", span))


def command_of(line: str) -> list[str]:
    """A shell line's first command as words, without its environment, comment, and whatever follows an operator."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    return words[: next((i for i, word in enumerate(words) if word[0] in "|&<>;"), len(words))]


@cache
def commands() -> Any:
    return typer.main.get_command(command_line())


def check_lexicast(words: list[str]) -> None:
    """`lexicast ...`: subcommands (also `a | b`) and options exist."""
    command: Any = commands()
    parent = command
    position = 1
    while position < len(words) and hasattr(command, "commands") and words[position] in command.commands:
        parent, command = command, command.commands[words[position]]
        position += 1
    rest = words[position:]
    while rest and rest[0] == "|":
        assert rest[1] in parent.commands, f"there is no {rest[1]!r} beside {words[position - 1]!r}"
        rest = rest[2:]
    is_group = hasattr(command, "commands")
    assert not is_group or not rest or rest[0].startswith("-") or rest[0].isupper(), f"there is no command {rest[0]!r}"
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    for word in rest:
        if word.startswith("-") and not command.context_settings.get("ignore_unknown_options"):
            assert word.partition("=")[0] in {*options, "--help", "--version"}, f"there is no option {word}"


def check_python(words: list[str]) -> None:
    """`python -m lexicast...`: the module is there, can be run, and some driver has its options."""
    module = words[words.index("-m") + 1]
    spec = find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        origin = origin.with_name("__main__.py")
    assert origin.exists(), f"{module} cannot be run"
    assert "__main__" in origin.name or "__main__" in origin.read_text(encoding="utf-8"), f"{module} cannot be run"
    files = [file for room in ("bench", "actors/testing") for file in (ROOT / room).rglob("*.py")]
    sources = "".join([file.read_text(encoding="utf-8") for file in files])
    for word in words:
        assert not word.startswith("--") or word == "--help" or f'"{word}"' in sources, (
            f"no driver has the option {word}"
        )


def check_make(words: list[str]) -> None:
    """`make TARGET`: the Makefile has it."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for word in words[1:]:
        assert "=" in word or word in targets, f"there is no target {word}"


@every_page
def test_commands_exist(path: Path) -> None:
    checks = {"lexicast": check_lexicast, "python": check_python, "make": check_make}
    for words in command_lines(path.read_text(encoding="utf-8")):
        try:
            checks[words[0]](words)
        except AssertionError as error:
            raise AssertionError(f"{path.name}: {' '.join(words)}: {error}") from None


def test_commands_that_the_code_names_exist() -> None:
    """What messages tell an operator to run, and docstrings a reader."""
    named = re.compile(r"`((?:lexicast|python -m lexicast[\w.]+)(?: [^`{}<]*)?)`")
    for file in [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]:
        for span in named.findall(file.read_text(encoding="utf-8")):
            words = shlex.split(span)
            try:
                (check_python if words[0] == "python" else check_lexicast)(words)
            except AssertionError as error:
                raise AssertionError(f"{file.relative_to(ROOT)}: {span}: {error}") from None


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{path.name}: {link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{path.name}: {link}: there is no such heading"


@every_page
def test_knobs_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    knobs = {f"{table}.{key}" for table, keys in TABLES.items() for key in keys}
    for span in spans(text):
        named = re.fullmatch(rf"((?:{'|'.join(TABLES)})\.[a-z][\w]*)(?: ?=.*)?", span)
        assert not named or named[1] in knobs, f"{path.name}: there is no knob {named and named[1]}"
    variables = {f"{ENVIRONMENT_PREFIX}{knob.replace('.', '__').upper()}" for knob in knobs}
    for variable in re.findall(rf"{ENVIRONMENT_PREFIX}[A-Z_]+__[A-Z_]+", text):
        assert variable in variables | {f"{ENVIRONMENT_PREFIX}TABLE__KEY"}, f"{path.name}: nobody reads {variable}"


@every_page
def test_files_and_modules_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for span in spans(text):
        if re.fullmatch(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|yaml|txt)", span):
            assert (ROOT / span).exists(), f"{path.name}: there is no file {span}"
        if re.fullmatch(r"lexicast(?:\.\w+)+", span) and span != "lexicast.toml":
            assert is_there(span), f"{path.name}: there is no {span}"


def is_there(dotted: str) -> bool:
    """Whether a module has that name, or has something of that name in it; without loading what it needs."""
    home, _, name = dotted.rpartition(".")
    if home == "lexicast" and name in dir(lexicast):
        return True
    try:
        spec, home_spec = find_spec(dotted), find_spec(home)
    except ModuleNotFoundError:
        spec, home_spec = None, find_spec(home)
    if spec is not None:
        return True
    if home_spec is None or home_spec.origin is None:
        return False
    return re.search(rf"\b{name}\b", Path(home_spec.origin).read_text(encoding="utf-8")) is not None


@every_page
def test_programs_compile(path: Path) -> None:
    for program in blocks(path.read_text(encoding="utf-8"), "python"):
        compile(program, path.name, "exec")


def test_readme_is_short_and_leads_to_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= README_LINES_MAX, f"README has {lines} lines, more than {README_LINES_MAX}: move some to docs/"
    missing = [page.name for page in DOCS if f"](docs/{page.relative_to(ROOT / 'docs')}" not in text]
    assert not missing, f"README does not lead to {', '.join(missing)}"
