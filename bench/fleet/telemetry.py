"""The messages of a fleet's devices, generated from a seed, and the account of them that a reader keeps.

A message is JSON of about 278 B, as small devices send it: who and when, counters, sensor values that walk, battery,
signal, position, firmware. A device is known by its number; numbers of messages ascend from 0.
"""

from __future__ import annotations

import json
import random
import re
import time
from typing import Final

SITES: Final = 50
FILTER: Final = b"fleet/#"

_FIRMWARES: Final = ("2.4.1", "2.4.1", "2.4.1", "2.3.9", "2.5.0-rc2")
_MODELS: Final = ("TH-100", "TH-100", "TH-200")
_DEVICE_AND_NUMBER: Final = re.compile(rb'\{"device":"device-(\d+)","n":(\d+)[,}]')


def client_id(device: int) -> str:
    """The device's client id; the same name stands in its topics and messages."""
    return f"device-{device:04d}"


def device_topic(device: int, kind: str) -> str:
    """The device's topic of a kind: telemetry, status (its will), command."""
    return f"fleet/site-{device % SITES}/{client_id(device)}/{kind}"


def numbered(device: int, number: int, **fields: object) -> bytes:
    """A message that says whose it is and which."""
    return json.dumps({"device": client_id(device), "n": number, **fields}, separators=(",", ":")).encode()


def device_and_number(payload: bytes) -> tuple[int, int]:
    """The inverse, as far as the account needs it. Raises ValueError for anything else."""
    found = _DEVICE_AND_NUMBER.match(payload)
    if found is None:
        raise ValueError(f"no message of a device: {payload[:60]!r}")
    return int(found[1]), int(found[2])


class Sensors:
    """One device's values."""

    def __init__(self, device: int, seed: int) -> None:
        self._random = random.Random(f"{seed} {device}")
        draw = self._random
        self._device = device
        self._model, self._firmware = draw.choice(_MODELS), draw.choice(_FIRMWARES)
        self._latitude, self._longitude = draw.uniform(47.3, 55.0), draw.uniform(6.0, 15.0)
        self._temperature, self._humidity = draw.gauss(21, 4), draw.uniform(30, 60)
        self._pressure, self._co2 = draw.gauss(1013, 6), draw.uniform(420, 900)
        self._battery, self._signal = draw.uniform(20, 100), draw.uniform(-95, -50)
        self._uptime_s = draw.uniform(0, 5e6)
        self._heard_s: float | None = None
        self.number = 0

    def message(self, now_s: float) -> bytes:
        """The next message; values have walked since the last one."""
        walk = self._random.gauss
        self._uptime_s += 0 if self._heard_s is None else now_s - self._heard_s
        self._heard_s = now_s
        self._temperature += walk(0, 0.05)
        self._humidity = min(99.0, max(5.0, self._humidity + walk(0, 0.2)))
        self._pressure += walk(0, 0.02)
        self._co2 = max(400.0, self._co2 + walk(0, 4))
        self._battery = max(0.0, self._battery - 0.0005)
        self._signal = min(-40.0, max(-110.0, self._signal + walk(0, 1)))
        number, self.number = self.number, self.number + 1
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1000):03d}Z"
        return numbered(
            self._device,
            number,
            time=when,
            model=self._model,
            fw=self._firmware,
            uptime=int(self._uptime_s),
            temperature=round(self._temperature, 2),
            humidity=round(self._humidity, 1),
            pressure=round(self._pressure, 2),
            co2=int(self._co2),
            battery=round(self._battery, 1),
            rssi=int(self._signal),
            position=[round(self._latitude, 5), round(self._longitude, 5)],
            alarm=self._co2 > 1200,
            link="lte-m",
            mode="auto",
        )


class NumberedAccount:
    """What a reader got of numbered messages: all of them, in order, each once?"""

    def __init__(self) -> None:
        self.taken = self.out_of_order = self.repeats = 0
        self._next: dict[int, int] = {}
        self._missing: dict[int, set[int]] = {}

    def take(self, device: int, number: int) -> None:
        """The reader got a device's message of that number."""
        self.taken += 1
        expected = self._next.get(device, 0)
        if number >= expected:
            if number > expected:
                self._missing.setdefault(device, set()).update(range(expected, number))
            self._next[device] = number + 1
        elif number in self._missing.get(device, ()):
            self._missing[device].discard(number)
            self.out_of_order += 1
        else:
            self.repeats += 1

    @property
    def missing(self) -> int:
        """Messages before the last one of their device that did not come."""
        return sum(map(len, self._missing.values()))

    def lost(self, published: int) -> int:
        """How many of all that were published have not come."""
        return published - (self.taken - self.repeats)
