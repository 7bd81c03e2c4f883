"""Write docs/conformance.md: MQTT's normative statements, and which tests prove them (tests/mqtt_statements.toml).

python scripts/conformance_page.py
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.statements import Statement, claims, proved, statements  # noqa: E402

PAGE = ROOT / "docs" / "conformance.md"
TITLES = {"mqtt5": "MQTT 5.0", "mqtt311": "MQTT 3.1.1"}
SHOWN = 3
HEAD = """# MQTT's statements, and what proves them

Every normative statement of MQTT 5.0 and 3.1.1 that binds a server has a test here, or a reason why there is none. The
statements are in our words; their numbers are the standards'. What binds clients alone is listed with the tests that
show what the broker does about it, where it can do something. Written by `scripts/conformance_page.py` from
`tests/mqtt_statements.toml` and the marks on the tests; `tests/docs/test_conformance.py` compares.

| | statements | bind a server | with a test | with a reason | neither |
| --- | --- | --- | --- | --- | --- |
"""
TAIL = """
## Eclipse's interoperability suites

Run by hand against `lexicast up` (paho.mqtt.testing of 2024-01-18, `interoperability/`), each test alone with a new
broker, that of MQTT 5 also as a whole: `client_test.py` (MQTT 3.1.1) passes 10 of 10, `client_test5.py` (MQTT 5) 26 of
27. Two tests want a broker that is set up for them:

- `test_server_keep_alive` asks for 120 s and wants to be told 60, which a server may do (3.2.2.3.14):
  `mqtt.keep_alive_s_max = 60`.
- `test_subscribe_failure` wants `test/nosubscribe` refused: `security.acl_file` with `topic readwrite #` and
  `topic deny test/nosubscribe`. In 3.1.1 it passes (0x80, 3.9.3). In MQTT 5 it cannot: the suite's client refuses every
  SUBACK whose code is none of 0, 1, 2 and 0x80, which are 3.1.1's, as against `[MQTT5-3.9.3-2]`. MQTT-3.9.3-2 asks for
  one of the Subscribe Reason Codes, and 0x87 (Not authorized) is one of those. lexicast answers 0x87. So does Mosquitto
  2.0.11, with which the test fails as well (the same rules; `test_server_keep_alive` passes with `max_keepalive 60`).

```bash
lexicast up --mqtt-port 1883 --set mqtt.keep_alive_s_max=60 --set security.acl_file=$PWD/acl
python client_test.py            # in paho.mqtt.testing/interoperability
python client_test5.py -p 1883
```
"""


def page() -> str:
    """The whole page."""
    table = statements()
    tests = proved(table, claims())
    rows, parts = [], []
    for version, title in TITLES.items():
        own = [each for each in table if each.version == version]
        rows.append(f"| {title} | {counts(own, tests)} |\n")
        parts.append(f"\n## {title}\n\n| | binds | says | proved by |\n| --- | --- | --- | --- |\n")
        parts += [f"| {each.id} | {each.binds} | {text(each.says)} | {proof(each, tests)} |\n" for each in own]
    return HEAD + "".join(rows) + "".join(parts) + TAIL


def counts(own: list[Statement], tests: dict[tuple[str, str], list[str]]) -> str:
    """The cells of a version."""
    bind = [each for each in own if each.binds != "client"]
    kinds = Counter("test" if tests[each.version, each.id] else "reason" if each.why else "neither" for each in bind)
    return " | ".join(str(n) for n in (len(own), len(bind), kinds["test"], kinds["reason"], kinds["neither"]))


def proof(statement: Statement, tests: dict[tuple[str, str], list[str]]) -> str:
    """Tests by their names, a few of them; or the reason."""
    found = tests[statement.version, statement.id]
    if not found:
        return f"*{text(statement.why)}*" if statement.why else ""
    shown = [f"`{where.removeprefix('tests/')}`" for where in found[:SHOWN]]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    same = [f"as {statement.same}:"] if statement.same else []
    return " ".join([*same, ", ".join(shown), *more])


def text(words: str) -> str:
    """For a cell."""
    return words.replace("|", "\\|").replace("$", "\\$").replace("#", "\\#")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(PAGE.read_text(encoding='utf-8').splitlines())} lines")
