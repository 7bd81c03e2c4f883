"""The lines of a console to brokers: a link to each that it asks, kept, dialled again when the next question comes."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.membership import ClusterInfo, Member, Members

from ..client.known_brokers import Endpoint
from ..link.link import Link
from ..status.over_link import dial_broker

ANSWER_TIMEOUT_S: Final = 3.0
# Whoever looks at a page waits for a broker that hangs no longer than that.
NEXT_S: Final = 1.0


class BrokerLines:
    """See the module's docstring. `node`: whose brokers are its own; `members`: the last that were told."""

    def __init__(self, node: str, cluster: ClusterInfo) -> None:
        self.node = node
        self.cluster = cluster
        self.members = Members(-1, {}, {}, {})
        self._links: dict[str, Link] = {}
        self._dialling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Those that gave no answer when they were asked last.
        self._silent: set[str] = set()

    def follow(self, members: Members) -> None:
        """These serve now."""
        self.members = members
        for name in [name for name in self._links if name not in members.brokers]:
            self._links.pop(name).close()
        for name in self._dialling.keys() - members.brokers.keys():
            del self._dialling[name]
        self._silent &= members.brokers.keys()

    def own(self) -> list[str]:
        """The brokers of this node that serve."""
        return sorted([name for name, member in self.members.brokers.items() if member.node == self.node])

    def nearest(self) -> list[str]:
        """All brokers that serve, this node's first."""
        own = self.own()
        return own + sorted(self.members.brokers.keys() - set(own))

    def endpoints(self) -> list[Endpoint]:
        """For a client: this node's brokers; where none serves, all."""
        brokers = self.members.brokers
        return [self._endpoint(brokers[name]) for name in self.own() or self.nearest()]

    def _endpoint(self, member: Member) -> Endpoint:
        return Endpoint(member.name, member.addresses, self.cluster.cluster_id, self.cluster.key)

    async def ask(self, broker: str, method: str, *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """One broker's answer. Raises LexicastError; UnavailableError where it is not there, or says nothing for so
        long."""
        member = self.members.brokers.get(broker)
        if member is None:
            raise UnavailableError(f"{broker} does not serve")
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._link(member)
                answer = await link.request(method, *arguments, timeout_s=timeout_s)
        except (TimeoutError, OSError, UnavailableError) as error:
            self._silent.add(broker)
            raise _unavailable(broker, error, timeout_s) from None
        self._silent.discard(broker)
        return answer

    async def ask_nearest(self, method: str, *arguments: Any) -> Any:
        """The answer of the first broker that gives one. The next one is asked when one has failed, or has said
        nothing for NEXT_S; one that others outrun is asked last from then on. Raises UnavailableError."""
        names = deque(sorted(self.nearest(), key=self._silent.__contains__))
        asked: dict[asyncio.Task[Any], str] = {}
        failures = []
        try:
            while names or asked:
                if names:
                    name = names.popleft()
                    asked[asyncio.create_task(self.ask(name, method, *arguments))] = name
                wait_s = NEXT_S if names else None
                done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = asked.pop(task)
                    try:
                        answer = task.result()
                    except LexicastError as error:
                        failures.append(f"{name}: {error}")
                        continue
                    self._silent.update([name for task, name in asked.items() if not task.done()])
                    return answer
        finally:
            for task in asked:
                if not task.cancel():
                    task.exception()  # it has come with the answer, and is not missed
        raise UnavailableError(f"no broker answers ({'; '.join(failures) or 'none serves'})")

    async def _link(self, member: Member) -> Link:
        name = member.name
        async with self._dialling[name]:
            link = self._links.get(name)
            if link is None or link.closed:
                link = self._links[name] = await dial_broker(self._endpoint(member))
            return link

    def close(self) -> None:
        """End the links."""
        for link in self._links.values():
            link.close()
        self._links.clear()


def _unavailable(broker: str, error: Exception, timeout_s: float) -> UnavailableError:
    if isinstance(error, UnavailableError):
        return error
    if isinstance(error, TimeoutError):
        return UnavailableError(f"{broker} has not answered for {timeout_s:.0f} s")
    return UnavailableError(f"{broker} cannot be reached ({error})")
