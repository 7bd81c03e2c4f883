"""The probers of the drilled machines: one in each machine's network, started with it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..machines import Machine
from . import prober
from .judging import NodeAnswers

HTTP_PORT: Final = 18080
PROBES: Final = "probes.jsonl"
LOG: Final = "prober.log"
END_S: Final = 10.0


class Probers:
    """See the module's docstring."""

    def __init__(self, mqtt_port: int) -> None:
        self._mqtt_port = mqtt_port
        self._machines: dict[str, Machine] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, machine: Machine) -> None:
        """The machine has power: its network is a new one."""
        self._end(machine.name)
        self._machines[machine.name] = machine
        where = (machine.name, machine.host, str(HTTP_PORT), str(self._mqtt_port), str(machine.folder / PROBES))
        command = [sys.executable, "-I", "-S", prober.__file__, *where]
        self._running[machine.name] = machine.start_beside(command, machine.folder / LOG)

    def _end(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(END_S)

    def close(self) -> None:
        """End all of them."""
        for name in list(self._running):
            self._end(name)

    def read(self) -> dict[str, NodeAnswers]:
        """What they have noted so far, by their machines' names."""
        found = {}
        for name, machine in self._machines.items():
            found[name] = NodeAnswers()
            for line in _lines(machine.folder / PROBES):
                with suppress(ValueError):  # one is under way, or was when its writer was ended
                    found[name].note(json.loads(line))
        return found


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
