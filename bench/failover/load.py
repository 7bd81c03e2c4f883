"""The load of the drills: who publishes and who subscribes, of which make, and their audit."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

from .audit import PYTHON, Audit, Party
from .brokers import END_S, HOME_S, Brokers, DrillClient, DrillPace
from .messages import DrillMessages, PlainMessages
from .paho_client import PahoDrillClient
from .python_client import PythonClient

AIOMQTT: Final = "aiomqtt"
MOSQUITTO: Final = "mosquitto"
PAHO: Final = "paho"
SETTLE_S: Final = 45.0
HOME_TURN_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Cast:
    """Who publishes and subscribes, and what is said. `pythons` do both."""

    pythons: tuple[Party, ...]
    publishers: tuple[Party, ...]
    subscribers: tuple[Party, ...]
    messages: DrillMessages = field(default_factory=PlainMessages)

    def without(self, makes: Collection[str]) -> Cast:
        """Those of other makes."""
        return replace(
            self,
            publishers=tuple(party for party in self.publishers if party.make not in makes),
            subscribers=tuple(party for party in self.subscribers if party.make not in makes),
        )


PUBLISHERS: Final = (
    *(Party(f"paho-pub-{qos}", PAHO, qos) for qos in (0, 1, 2)),
    *(Party(f"aiomqtt-pub-{qos}", AIOMQTT, qos) for qos in (0, 1)),
    Party("mosquitto-pub-1", MOSQUITTO, 1),
)
PLAIN_CAST: Final = Cast(
    pythons=tuple(Party(f"python-{qos}", PYTHON, qos) for qos in (0, 1, 2)),
    publishers=PUBLISHERS,
    subscribers=(
        *(Party(f"paho-sub-{qos}", PAHO, qos) for qos in (1, 2)),
        Party("aiomqtt-sub-1", AIOMQTT, 1),
        Party("mosquitto-sub-1", MOSQUITTO, 1),
    ),
)


def lacking_makes() -> dict[str, str]:
    """The makes that are not installed, and what to do."""
    from .mosquitto_client import PROGRAMS

    lacking = {}
    if any(shutil.which(program) is None for program in PROGRAMS):
        lacking[MOSQUITTO] = (
            "mosquitto_pub and mosquitto_sub are missing: scripts/debian mosquitto_pub=mosquitto-clients"
        )
    if find_spec("aiomqtt") is None:
        lacking[AIOMQTT] = "aiomqtt is missing: pip install lexicast[bench]"
    return lacking


class DrillLoad:
    """All clients. They are spread over the hosts, each with all of them on its list."""

    def __init__(self, hosts: Sequence[str], port: int, run_folder: Path, rate: float, cast: Cast = PLAIN_CAST) -> None:
        """`run_folder`: where `lexicast up` keeps `run.json` and `cluster.key`; `rate`: of each publisher, a second."""
        cast = cast.without(lacking_makes())
        publishers, subscribers = (*cast.pythons, *cast.publishers), (*cast.pythons, *cast.subscribers)
        self.audit = Audit(publishers, subscribers, cast.messages)
        self.pace = DrillPace(rate)
        self._pythons = [PythonClient(party, self.audit, self.pace, run_folder) for party in cast.pythons]
        self.clients: list[DrillClient] = [*self._pythons]
        for number, party in enumerate([*cast.publishers, *cast.subscribers]):
            brokers = Brokers(hosts, number, port)
            self.clients.append(self._made(party, self.pace if party in cast.publishers else None, brokers))
        self.publishers = [party.name for party in publishers]
        self.subscribers = [party.name for party in subscribers]
        # Where some have conditions, it is their deliveries that are measured.
        self.measured = [party.name for party in subscribers if party.where] or self.subscribers

    def _made(self, party: Party, pace: DrillPace | None, brokers: Brokers) -> DrillClient:
        if party.make == PAHO:
            return PahoDrillClient(party, self.audit, pace, brokers)
        if party.make == MOSQUITTO:
            from .mosquitto_client import MosquittoClient

            return MosquittoClient(party, self.audit, pace, brokers)
        from .aiomqtt_client import AiomqttClient

        return AiomqttClient(party, self.audit, pace, brokers)

    async def start(self) -> None:
        """All connect. Raises UnavailableError."""
        for client in self.clients:
            try:
                await client.start()
            except TimeoutError:
                raise UnavailableError(f"{client.party.name} is not served within {END_S:.0f} s") from None

    async def stop(self) -> None:
        """All end."""
        self.pace.on = False
        await asyncio.gather(*[client.stop() for client in self.clients], return_exceptions=True)

    def at(self) -> dict[str, str]:
        """The host that each client is connected to."""
        return {client.party.name: client.at for client in self.clients}

    def spread(self) -> Counter[str]:
        """How many clients each host has."""
        return Counter(self.at().values())

    async def go_home(self) -> None:
        """All are where they began; the Python clients anywhere. Raises UnavailableError."""
        for python in self._pythons:
            await python.go_home()
        until = time.monotonic() + HOME_S
        while away := [client for client in self.clients if not client.at_home]:
            if time.monotonic() > until:
                names = ", ".join(sorted([client.party.name for client in away]))
                raise UnavailableError(f"not connected again after {HOME_S:.0f} s: {names}")
            for client in away:
                if client.at:  # who is on the way may be on the way there
                    await client.go_home()
            await asyncio.sleep(HOME_TURN_S)

    async def settled(self, since: dict[str, int]) -> str:
        """Returns when all that was published, numbered from `since` on, is answered, and has arrived where it must;
        what is lacking after SETTLE_S, in words."""
        lacks = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while lacks := self._lacking(since):  # noqa: ASYNC110  # of many clients
                    await asyncio.sleep(0.05)
        return lacks

    def _lacking(self, since: dict[str, int]) -> str:
        unanswered = {
            name: len(left)
            for name in self.publishers
            if (left := [n for n in self.audit.unanswered(name) if n >= since[name]])
        }
        missing = {name: len(keys) for name, keys in self.audit.missing(since).items()}
        told = [f"not answered: {unanswered}"] * bool(unanswered) + [f"not delivered: {missing}"] * bool(missing)
        return "; ".join(told)
