"""The port of a broker for Python clients: their links carry batches as they are, in both directions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from lexicast.cluster.protocol.broker_list import BrokerList
from lexicast.compression.link_dictionaries import LinkDictionaries

from ...link.link import Link
from ...status.lagging_clients import LaggingClient
from ..engine import BrokerEngine
from ..subscriber import Subscriber
from .entry_checks import EntryChecks
from .session import Answers, PythonClientSession
from .user_rights import UserRights

# Clients in one answer.
CLIENTS_LISTED_MAX = 10_000
# Who asks one question; see `status.over_link`.
ASKING = "asking"


class ClientPort:
    """All Python clients of a broker."""

    def __init__(
        self,
        engine: BrokerEngine,
        payload_bytes_max: int,
        mqtt_publishers: Callable[[bytes], int],
        status: Callable[[], dict[str, Any]],
        cluster: Callable[[], Awaitable[dict[str, Any]]],
        clients: Callable[[int], list[dict[str, Any]]],
        operations: Answers,
        brokers_of_users: Callable[[Link], BrokerList],
    ) -> None:
        """`mqtt_publishers` counts those of a family that are told of dictionaries, `status` tells of this broker,
        `cluster` of all actors, `clients` lists so many of this broker's; `operations` are operators' requests;
        `brokers_of_users`: where a user's client may go."""
        self._brokers_of_users = brokers_of_users
        self.sessions: set[PythonClientSession] = set()
        # What those have sent that have gone.
        self._received_bytes = 0
        self._admits = True
        self._engine = engine
        self._checks = EntryChecks(engine.groups, payload_bytes_max)
        self._mqtt_publishers = mqtt_publishers
        self._status = status
        self._clients = clients
        self._answers: Answers = {
            "audience": self._tell_audience,
            "status": self._tell_status,
            "cluster": cluster,
            "clients": self._tell_clients,
            **operations,
        }

    def opened(self, link: Link) -> PythonClientSession | None:
        """A link was opened; only clients have business here."""
        if link.role not in ("client", ASKING) or (link.role == "client" and not self._admits):
            return None
        session = PythonClientSession(self._engine, link, self._checks, self._answers, self._closed)
        if link.role == "client":  # else it is gone in a moment, and no client of anything
            self.sessions.add(session)
        return session

    def opened_by_user(self, link: Link, user: str) -> PythonClientSession | None:
        """Somebody has logged in."""
        if not self._admits:
            return None
        rights = UserRights(self._engine, self._engine.rights.client(user, link.name))

        async def brokers() -> BrokerList:
            return self._brokers_of_users(link)

        session = PythonClientSession(self._engine, link, self._checks, {"brokers": brokers}, self._closed, rights)
        self.sessions.add(session)
        return session

    def _closed(self, session: PythonClientSession) -> None:
        if session in self.sessions:
            self.sessions.discard(session)
            self._received_bytes += session.received_bytes

    def admit(self) -> None:
        """Let clients connect (again)."""
        self._admits = True

    def send_away(self) -> None:
        """Let nobody connect, and have those that are connected go to other brokers: what is not answered they send
        again there, under the numbers that it has."""
        self._admits = False
        for session in list(self.sessions):
            session.send_away()

    def audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        """(publishers, subscribers) of this broker to which a dictionary of the family goes; `topics`: some of its own.

        A Python client that subscribes to none of them counts as a publisher: every one is told of dictionaries.
        """
        reached = [{s for s, _ in self._engine.subscriptions.fan(topic) if s.takes_dictionaries} for topic in topics]
        subscribers = set().union(*reached)
        silent = [s for s in self.sessions if not s.streams.samples and not s.streams.some_of(subscribers)]
        return self._mqtt_publishers(family) + len(silent), len(subscribers)

    def links(self) -> list[LinkDictionaries]:
        """Those of clients that get dictionaries as they pay."""
        return [own.link for session in self.sessions if (own := session.streams.dictionaries) is not None]

    def lagging(self) -> list[Subscriber]:
        """The streams of all clients that have something to catch up with."""
        return [stream for session in self.sessions for stream in session.streams.lagging()]

    @property
    def received_bytes(self) -> int:
        """What clients have sent since this broker began."""
        return self._received_bytes + sum([session.received_bytes for session in self.sessions])

    def lagging_clients(self) -> Iterator[LaggingClient]:
        """The clients of these streams."""
        for session in self.sessions:
            if cursors := session.streams.lagging():
                yield LaggingClient(session.described, [stream.lagging for stream in cursors])

    def described(self, count: int) -> list[dict[str, Any]]:
        """Clients, at most `count`."""
        return [session.described() for session in islice(self.sessions, count)]

    def room(self) -> None:
        """The pipelines have room again."""
        for session in self.sessions:
            session.resume_reading()

    # -- answers

    async def _tell_audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        return self.audience(family, topics)

    async def _tell_status(self) -> dict[str, Any]:
        return self._status()

    async def _tell_clients(self, count: int) -> list[dict[str, Any]]:
        return self._clients(min(count, CLIENTS_LISTED_MAX))
