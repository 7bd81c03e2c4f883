"""Write docs/clients.md: what other people's MQTT clients do with a broker here (tests/clients/matrix.py).

python scripts/clients_page.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.clients.matrix import BOTH, CLIENTS, FEATURES, LACKS  # noqa: E402

PAGE = ROOT / "docs" / "clients.md"
HEAD = """# Clients of others

Any client of MQTT 3.1.1 or 5 can connect. These are tested with each change (`tests/clients/test_matrix.py`), each cell
of the table in the versions of MQTT that stand in its row, against one cluster, with paho-mqtt for Python at the other
end. Written by `scripts/clients_page.py` from `tests/clients/matrix.py`; `tests/docs/test_clients_page.py` compares.

"""
TAIL = """
## What it is called

- **paho-mqtt, `lexicast.mqtt`**: `tls_set("ca.crt")`; `Client(transport="websockets")` with `ws_set_options("/mqtt")`;
  a subscription to the past by `subscribe(filter, properties=...)` with `UserProperty = ("since", "10m")`. Aliases
  `lexicast.mqtt` takes by itself.
- **aiomqtt**: `tls_params=TLSParameters("ca.crt")`; `transport="websockets", websocket_path="/mqtt"`; properties are
  paho-mqtt's.
- **paho C** (`libpaho-mqtt3as`): `mqtts://` with `MQTTAsync_SSLOptions.trustStore` and `verify`;
  `MQTTPROPERTY_CODE_USER_PROPERTY` in `MQTTAsync_callOptions.properties`. A process that has connections
  already takes up to a second to open another one.
- **npm's `mqtt`**: `mqtts://` with `{ca: fs.readFileSync("ca.crt")}`; `ws://HOST:PORT/mqtt`, `wss://`;
  `{properties: {topicAliasMaximum: 4096}}` takes aliases, `{autoAssignTopicAlias: true}` gives some;
  `subscribe(filter, {properties: {userProperties: {since: "10m"}}})`.
- **Mosquitto's tools**: `--cafile ca.crt`; `-D subscribe user-property since 10m`; `-l -D publish topic-alias 1`.

Programs on paho-mqtt get [compression](compression.md) by one other import, `lexicast.mqtt`; Python programs that want
positions, the past and groups as objects have [a client of their own](python.md) ([coming from](coming-from.md)).
Pages in browsers: [MQTT over WebSocket](mqtt.md#websocket).
"""


def page() -> str:
    """The whole page."""
    return HEAD + versions() + "\n" + table() + TAIL


def versions() -> str:
    """What is tested."""
    pins = dict(line.split("==") for line in _lines("constraints.txt") if not line.startswith("#"))
    found = re.search(r" mqtt@([\d.]+);", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found
    python = ", ".join(f"{name} {pins[name]}" for name in ("paho-mqtt", "aiomqtt"))
    debian = "of Debian 12 `libpaho-mqtt-dev` 1.3.12, `mosquitto-clients` 2.0.11"
    return f"Versions: {python}, npm's `mqtt` {found[1]}; {debian}.\n"


def table() -> str:
    """A row a feature, a column a client, and why not."""
    reasons = list(dict.fromkeys(LACKS.values()))
    rows = ["| | MQTT | " + " | ".join(CLIENTS.values()) + " |", "| --- " * (len(CLIENTS) + 2) + "|"]
    for feature, of in FEATURES.items():
        cells = [cell(client, feature, reasons) for client in CLIENTS]
        rows.append(f"| {of.says} | {'3.1.1, 5' if of.versions == BOTH else '5'} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([*rows, "", "Why the client does not:", "", *notes, ""])


def cell(client: str, feature: str, reasons: list[str]) -> str:
    """Whether a client does it, or the number of the reason."""
    why = LACKS.get((client, feature))
    return "works" if why is None else f"no ({reasons.index(why) + 1})"


def _lines(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(PAGE.read_text(encoding='utf-8').splitlines())} lines")
