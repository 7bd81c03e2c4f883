"""`ray up` with ray_cluster.yaml as it stands, on machines that are namespaces: docs/ray_up.md is what is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexicast.bench.ray_up.driver import drill
from lexicast.bench.ray_up.machines import lacking, network
from lexicast.bench.ray_up.transcript import OperatorPage, settled, shown
from lexicast.cluster.errors import UnavailableError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ray_up.md"
LACKING = lacking()

needs_machines = pytest.mark.skipif(bool(LACKING), reason=LACKING)


def told(page: str) -> list[str]:
    """A page's lines but for those that say that some were left out: what Ray says of itself is another each time."""
    return [line for line in page.splitlines() if line != "..."]


@needs_machines
@pytest.mark.drill  # two cores that others work on too: Ray takes a machine for gone then
@pytest.mark.timeout(900)
def test_the_page_is_what_an_operator_sees(tmp_path: Path) -> None:
    transcript, _ = drill(print)
    assert told(transcript.text()) == told(PAGE.read_text(encoding="utf-8")), (
        "write it anew: python -m lexicast.bench.ray_up --transcript ..."
    )


@needs_machines
def test_machines_see_each_other_and_nothing_else_and_end(tmp_path: Path) -> None:
    with network(tmp_path, "192.0.2.1", {"one": "192.0.2.2", "two": "192.0.2.3"}) as made:
        made.switch_on(["one", "two"])
        said = made.operator.run("ssh 192.0.2.2 'hostname; pgrep -c .; ls /tmp; ip -brief address'").splitlines()
        assert said[0] == "one"
        assert int(said[1]) < 8  # its sshd, our command: nobody else's
        assert "192.0.2.2/24" in said[-1]
        assert made.operator.run("head -c 3 < /dev/tcp/192.0.2.3/22") == "SSH"
        made.operator.run("ssh 192.0.2.3 'touch kept'")
        made.machines["two"].switch_off()
        with pytest.raises(UnavailableError):
            made.operator.run("timeout 2 bash -c 'exec 3<> /dev/tcp/192.0.2.3/22'")
        made.switch_on(["two"])
        assert made.operator.run("ssh 192.0.2.3 'ls kept'") == "kept"
        pids = [made.operator.pid, *[machine.pid for machine in made.machines.values()]]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_transcript_leaves_out_what_differs() -> None:
    raw = (
        "2026-11-28 10:00:00,123\tINFO updater.py:210 -- \x1b[37mNew status\x1b[39m: up-to-date\r\n"
        "lexicast 0.1.0 serves (cluster 9d2bfe4d)\n\n"
        "  data     /tmp/x-1/head/home/lexicast\n"
        "10:00:01 52 topic groups have one copy of 2\n"
        "stopped (process 3995)\n"
    )
    assert settled(raw) == [
        "New status: up-to-date",
        "lexicast 0.1.0 serves (cluster ID)",
        "  data     ~/lexicast",
        "N topic groups have one copy of 2",
        "stopped (process PID)",
    ]
    assert shown(["a", "b1", "b2", "c", "b1"], "b") == ["...", "b1", "b2", "..."]


def test_a_transcript_is_a_page() -> None:
    said: list[str] = []
    made = OperatorPage("Title", said.append)
    made.heading("Part")
    made.prose("word " * 60)
    made.command("one", ["1"])
    made.command("two", [])
    text = made.text()
    assert said == ["Part"]
    assert text.startswith("# Title\n\n## Part\n\nword word")
    assert text.endswith("\n\n```text\n$ one\n1\n$ two\n```\n")
    assert max(map(len, text.splitlines())) <= 120
