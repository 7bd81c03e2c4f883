"""The data path compiled: used where it fits its sources, and doing what they do."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lexicast import compiled

from .tidy.repository import MODULES as MODULES_OF_THE_HOUSE
from .tidy.repository import ROOT, dotted, imports, name, tree

SCRIPT = runpy.run_path(str(ROOT / "scripts/compile.py"))
MODULES = ["lexicast.cluster.blocks", "lexicast.cluster.positions"]
# Tests of the compiled modules that replace nothing within them, and stories that pass through all of them.
TESTS = (
    "tests/actors/bridge/test_link_encoder.py",
    "tests/actors/bridge/test_mosquitto.py",
    "tests/actors/bridge/test_sent_publications.py",
    "tests/actors/broker/test_client_broker.py",
    "tests/actors/broker/test_fanout.py",
    "tests/actors/link/test_encrypted_links.py",
    "tests/actors/mqtt/test_broker.py",
    "tests/actors/mqtt/test_codec.py",
    "tests/actors/mqtt/test_codec_fuzz.py",
    "tests/actors/mqtt/test_hostile.py",
    "tests/actors/mqtt/test_order.py",
    "tests/actors/mqtt/test_order_fuzz.py",
    "tests/actors/mqtt/test_session.py",
    "tests/cluster/test_messages.py",
    "tests/cluster/test_selection.py",
    "tests/cluster/test_sequencer.py",
    "tests/stories/test_data_path.py",
    "tests/stories/test_falling_behind.py",
    "tests/stories/test_refusals.py",
    "tests/stories/test_transcripts.py",
)


def made(folder: Path, **other: Any) -> Path:
    """A folder as `scripts/compile.py` leaves it."""
    sources = SCRIPT["sources_of"](MODULES)
    manifest = {
        "interpreter": compiled.INTERPRETER,
        "sources": sources,
        "fingerprint": compiled.fingerprint([compiled.source_of(source) for source in sources]),
        "modules": MODULES,
        "shared": ["a__mypyc"],
    }
    (folder / compiled.MANIFEST).write_text(json.dumps(manifest | other))
    return folder


def test_all_of_it_is_used_where_it_was_made_of_these_sources(tmp_path: Path) -> None:
    found = compiled.fitting(made(tmp_path))
    assert found == {module: tmp_path / f"{module}.so" for module in [*MODULES, "a__mypyc"]}
    finder = compiled.CompiledModules(found)
    spec = finder.find_spec("lexicast.cluster.blocks", None)
    assert spec is not None
    assert spec.origin == str(tmp_path / "lexicast.cluster.blocks.so")
    assert finder.find_spec("lexicast.cluster.errors", None) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"fingerprint": "0" * 64}, "other sources"),
        ({"sources": MODULES}, "other sources"),
        ({"sources": ["lexicast.gone"]}, "cannot be read"),
        ({"interpreter": "cpython-312-x86_64-linux-gnu"}, "cpython-312"),
        ({"modules": None}, "cannot be read"),
    ],
)
def test_what_was_made_of_others_is_not_used(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    found = compiled.fitting(made(tmp_path, **other))
    assert isinstance(found, str)
    assert why in found


def test_what_compiled_modules_import_counts_as_their_source() -> None:
    """mypyc writes constants of modules that are not compiled into its code: a changed one would live on in there."""
    sources = SCRIPT["sources_of"](SCRIPT["modules"]())
    assert set(SCRIPT["modules"]()) < set(sources)
    assert {"lexicast.cluster.errors", "lexicast.cluster.protocol.heartbeat", "lexicast.actors.mqtt.codec.__init__"} < {
        *sources
    }
    assert not [source for source in sources if source.startswith(("lexicast.bench", "lexicast.raydp_jobs"))]


def test_sources_are_used_where_there_is_nothing_else_or_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiled.PURE, "1")
    assert compiled.fitting(made(tmp_path)) == "LEXICAST_PURE is set"
    monkeypatch.delenv(compiled.PURE)
    assert compiled.fitting(tmp_path / "nothing") == "not compiled"
    (tmp_path / compiled.MANIFEST).write_text("{")
    assert "cannot be read" in str(compiled.fitting(tmp_path))


def test_no_class_that_is_not_compiled_inherits_from_one_that_is() -> None:
    """Python refuses to make it, when its module is imported."""
    wrong, together = [], SCRIPT["modules"]()
    for path in MODULES_OF_THE_HOUSE:
        if dotted(path) in together:
            continue
        imported = {each.rpartition(".")[2]: each.rpartition(".")[0] for each, _ in imports(path)}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                found = [base for base in bases if imported.get(base) in together]
                refused = [base for base in found if not allows_it(imported[base], base)]
                wrong += [f"{name(path)}:{node.lineno} {node.name} inherits from {base}" for base in refused]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_awaited_while_an_exception_is_handled() -> None:
    """Compiled code leaves it in the thread's state then: every task that runs meanwhile has it for the context of what
    it raises, and where each try fails the chain grows as long as that goes on."""
    wrong = []
    for module in SCRIPT["modules"]():
        for handler in ast.walk(ast.parse(compiled.source_of(module).read_text())):
            if isinstance(handler, ast.ExceptHandler):
                gives_way = (ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Yield, ast.YieldFrom)
                wrong += [f"{module}:{n.lineno}" for n in ast.walk(handler) if isinstance(n, gives_way)]
    assert not wrong, "\n".join(wrong)


def allows_it(module: str, base: str) -> bool:
    """Whether a class of a compiled module says that others may inherit from it, or is a protocol: those are not
    compiled."""
    source = compiled.source_of(module).read_text()
    marked = rf"@mypyc_attr\(allow_interpreted_subclasses=True\)  # by .*\nclass {base}\b"
    return re.search(marked, source) is not None or f"class {base}(Protocol):" in source


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process that uses what `make` has compiled."""
    if SCRIPT["compiler"]() is None:
        pytest.skip("no C compiler with Python's headers")
    path = os.pathsep.join(part for part in sys.path if part)
    return {**os.environ, "LEXICAST_TESTS": "compiled", "PYTHONPATH": path}


def test_what_make_has_compiled_is_used(environment: dict[str, str]) -> None:
    program = "import lexicast.compiled as c, lexicast.cluster.blocks as b; print(c.state(), b.__file__)"
    told = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.endswith(".so\n"), f"{told.stdout}: run make compiled"


@pytest.mark.timeout(900)
def test_the_tests_of_the_data_path_pass_compiled(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp"]
    ran = subprocess.run(
        [*command, str(tmp_path / "inner"), *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]
