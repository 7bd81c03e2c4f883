"""`lexicast` as its users type it: what is there, what `help` shows, and what a type checker makes of a program."""

from __future__ import annotations

import ast
import builtins
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lexicast
import lexicast.mqtt
import lexicast.sync
import lexicast.testing

ROOT = Path(__file__).resolve().parents[3]
MODULES = (lexicast, lexicast.sync, lexicast.mqtt, lexicast.testing)
CHECK_S = 600.0

PROGRAM = """
import asyncio

import lexicast
import lexicast.mqtt
import lexicast.sync
import lexicast.testing


async def main() -> None:
    async with lexicast.connect(give_up_s=5.0) as bus:
        position: lexicast.Position = await bus.publish("a/b", "text", properties={"unit": "min"})
        positions: list[lexicast.Position] = await bus.publish_many([("a/b", b"bytes"), ("c", "text")])
        try:
            async with bus.subscribe(["a/+", "c"], since=position, slow="drop") as subscription:
                async for message in subscription:
                    print(message.topic, message.payload.decode(), message.position.offset, positions)
                batch: list[lexicast.Message] = await subscription.next_batch()
        except lexicast.PublishManyRefusedError as error:
            print(error.positions, batch)
        print([message.damaged async for message in bus.history("#", since="1h", limit=3)], bus.statistics["links"])


def blocking(properties: lexicast.Properties) -> list[bytes]:
    with lexicast.sync.connect() as bus, bus.subscribe("a/+") as subscription:
        bus.publish("a/b", b"", properties=properties, expiry_s=2.5)
        return [message.payload for message in subscription]


def with_paho() -> int:
    client = lexicast.mqtt.Client(lexicast.mqtt.CallbackAPIVersion.VERSION2)
    return client.sdc_stats().waiting + lexicast.mqtt.MQTT_CLEAN_START_FIRST_ONLY


broker = lexicast.testing.MemoryBroker()
client: lexicast.Client = lexicast.connect("link:unix:/tmp/socket", key=broker.key)
asyncio.run(main())
"""
MISTAKES = {
    "lexicast.publish": "attr-defined",
    "lexicast.connect(adress='auto')": "call-arg",
    "lexicast.connect().publish('a', {'no': 'bytes'})": "arg-type",
    "lexicast.connect().subscribe(12)": "arg-type",
    "lexicast.Message.payloads": "attr-defined",
    "lexicast.mqtt.Klient": "attr-defined",
}


def public() -> Iterator[tuple[str, Any]]:
    """Every public name of ours, with what it names."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if not name.startswith("__") and not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def docstrings(value: Any) -> Iterator[str]:
    """A class' or function's docstring, and its members'."""
    yield inspect.getdoc(value) or ""
    if isinstance(value, type):
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""


def test_dir_shows_what_there_is_and_nothing_else() -> None:
    shown = {name for name in dir(lexicast) if not name.startswith("_")}
    assert shown == {*lexicast.__all__, "history", "spark_session"} - {"__version__"}
    code = f"import lexicast; assert {shown!r} <= set(dir(lexicast))"  # before anything is loaded
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], check=True)


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


@pytest.mark.parametrize("module", [lexicast, lexicast.mqtt])
def test_type_checkers_see_every_name_and_no_others(module: ModuleType) -> None:
    """A `__getattr__` that they see makes `lexicast.conect` a valid expression."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    if module is lexicast:
        shown = next(node for node in tree.body if isinstance(node, ast.If))
        names = {alias.asname for node in shown.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert names == {*lexicast.__all__, "history", "spark_session"} - {"__version__"}


def test_every_error_that_a_docstring_names_can_be_caught() -> None:
    for where, value in public():
        if str(getattr(value, "__module__", "")).startswith("paho"):
            continue
        for text in docstrings(value):
            for error in re.findall(r"\b[A-Z]\w*Error\b", text):
                assert hasattr(lexicast, error) or hasattr(builtins, error), f"{where} names {error}"


def test_help_shows_what_users_use() -> None:
    """No internals, and no member without a docstring."""
    assert [name for name in vars(lexicast.Client) if name[0] != "_"] == [
        *("open", "close", "client_id", "publish", "publish_many", "publish_nowait", "flush"),
        *("request", "reply", "dictionaries"),
        *("subscribe", "history", "count", "status", "broker", "broker_name", "statistics"),
    ]
    assert [name for name in vars(lexicast.Subscription) if name[0] != "_"] == [
        *("filters", "position", "cursor", "dropped", "next_batch", "ack", "call", "close"),
    ]
    for name in ("Client", "Subscription", "Message", "Properties"):
        kind = getattr(lexicast, name)
        members = {each: value for each, value in vars(kind).items() if not each.startswith("_")}
        text = pydoc.plain(pydoc.render_doc(kind))
        assert "Made by" in text or "made by" in text or name in ("Message", "Properties")
        for each, value in members.items():
            assert each in text
            if isinstance(value, property) or inspect.isfunction(value):
                assert inspect.getdoc(value), f"{name}.{each} has no docstring"


def checked(program: str, folder: Path) -> list[str]:
    """What mypy says of a user's program, strictly; configured as for our own, whose cache it uses."""
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(re.sub(r"(?m)^files = .*$", "", configuration))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(folder / "pyproject.toml"), "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_S, check=False)
    assert result.stderr == ""
    return [line for line in result.stdout.splitlines() if "error:" in line]


@pytest.mark.timeout(CHECK_S)
def test_a_strict_type_checker_takes_a_users_program_and_finds_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    assert (ROOT / "src/lexicast/py.typed").exists()
    lines = PROGRAM.count("\n")
    found = checked(PROGRAM + "".join(f"{mistake}\n" for mistake in MISTAKES), tmp_path)
    told = {int(line.split(":")[1]): line for line in found}
    assert sorted(told) == [lines + 1 + at for at in range(len(MISTAKES))], "\n".join(found)
    for line, code in zip(sorted(told), MISTAKES.values(), strict=True):
        assert told[line].endswith(f"[{code}]"), told[line]
