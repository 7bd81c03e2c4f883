"""Golden transcripts: a protocol story as a readable text, told again by a whole cluster and compared line by line.

A story is a file in `tests/transcripts`: its title, then one step a line, in order:

    cluster    brokers 2                   how many there are; before anything else
    alice   >  CONNECT broker-0 v5 id=alice kept=600 will=gone:alice delay=60
    alice   <  CONNACK present=0           the next packet that alice gets
    alice   >  SUBSCRIBE id=1 t qos=1
    alice   <  SUBACK id=1 0x01
    alice   >  PUBLISH t hello qos=2 id=5
    alice   <  PUBLISH t hello qos=1 id=$a dup     $a: the same wherever it stands; *: whatever it is
    alice   <  nothing                     up to the answer to a ping
    alice   <  closed                      by the broker
    alice   breaks                         the connection, without a word; the broker has seen it
    cluster    kill broker-0 | start broker-0 | stop broker-0 | restart coordinator | stop | start | discards
    clock      +60                         seconds

Packets are words: a name, what it is about, `key=value`, flags; what is 0 or absent is left out. Lines that begin with
`#` and empty ones are for the reader. Where the cluster deviates the story is printed up to there, and what came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)
from lexicast.actors.mqtt.codec.properties import SESSION_EXPIRY_S, USER_PROPERTY, WILL_DELAY_S

from .harness import STORE, Cluster, Shifted, eventually
from .mqtt_harness import Closed, Message, Raw, close_clients

RETENTION_S = 3_600
_ACKS = {"PUBACK": PubAck, "PUBREC": PubRec, "PUBREL": PubRel, "PUBCOMP": PubComp}
_STEP = re.compile(r"(\w+)\s+([<>]|breaks|brokers|kill|start|stop|restart|discards|\+\d+)\s*(.*)")


class Deviation(AssertionError):
    """The cluster did something else than the story says."""


# -- words


def words_of(packet: Any) -> str:
    """A packet that a client got, in words."""
    match packet:
        case ConnAck():
            told = dict((packet.properties or {}).get(USER_PROPERTY, ()))
            discarded = told.get("lexicast-discarded-at-most")
            return _join(
                "CONNACK",
                f"present={int(packet.session_present)}",
                _code(packet.reason_code),
                f"discarded={discarded}" if discarded else "",
            )
        case SubAck() | UnsubAck():
            codes = [f"0x{code:02x}" for code in packet.reason_codes]
            return _join(type(packet).__name__.upper(), f"id={packet.packet_id}", *codes)
        case Message():
            return _join(
                "PUBLISH",
                packet.topic,
                packet.payload.decode(),
                f"qos={packet.qos}" if packet.qos else "",
                f"id={packet.packet_id}" if packet.qos else "",
                "dup" if packet.dup else "",
                "retain" if packet.retain else "",
            )
        case PubAck() | PubRec() | PubRel() | PubComp():
            return _join(type(packet).__name__.upper(), f"id={packet.packet_id}", _code(packet.reason_code))
        case Disconnect():
            return _join("DISCONNECT", _code(packet.reason_code))
    return repr(packet)


def _join(*parts: str) -> str:
    return " ".join([part for part in parts if part])


def _code(code: int) -> str:
    return f"0x{code:02x}" if code else ""


def packet_of(words: str) -> tuple[Any, str]:
    """The packet that a client sends, and for a CONNECT the broker that it goes to."""
    name, *rest = words.split()
    named = dict([word.split("=", 1) for word in rest if "=" in word])
    plain = [word for word in rest if "=" not in word]
    packet_id, qos = int(named.get("id", 0)) if name != "CONNECT" else 0, int(named.get("qos", 0))
    match name:
        case "CONNECT":
            return _connect(named, plain), plain[0]
        case "SUBSCRIBE":
            return Subscribe(packet_id, [(plain[0].encode(), SubscriptionOptions(qos))]), ""
        case "UNSUBSCRIBE":
            return Unsubscribe(packet_id, [plain[0].encode()]), ""
        case "PUBLISH":
            topic, payload = plain[0].encode(), plain[1].encode()
            return Publish(topic, payload, qos, "retain" in plain, "dup" in plain, packet_id), ""
        case "DISCONNECT":
            return Disconnect(int(plain[0], 16) if plain else 0), ""
    return _ACKS[name](packet_id), ""


def _connect(named: dict[str, str], plain: list[str]) -> Connect:
    version = V5 if "v5" in plain else V311
    will = None
    if "will" in named:
        topic, _, payload = named["will"].partition(":")
        delay = {WILL_DELAY_S: int(named["delay"])} if "delay" in named else None
        will = Will(topic.encode(), payload.encode(), 1, properties=delay)
    keeps = int(named.get("kept", 0))
    properties = {SESSION_EXPIRY_S: keeps} if keeps and version == V5 else None
    clean = "clean" in plain
    return Connect(version, named["id"], clean, 0, will, properties=properties)


# -- telling


class Story:
    """One transcript being told; `told` is what has been told so far."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._lines = path.read_text(encoding="utf-8").splitlines()
        self._folder = folder
        self._clock = Shifted()
        self._clients: dict[str, Raw] = {}
        self._known: dict[str, str] = {}
        self._brokers = 1
        self._cluster = self._made()

    def _made(self) -> Cluster:
        options = replace(STORE, retention_s=RETENTION_S)
        return Cluster(self._folder, clock=self._clock, options=options)

    def steps(self) -> Iterator[tuple[int, str, str, str]]:
        """(line, who, what, the rest) of each step."""
        for number, line in enumerate(self._lines[1:], 1):
            if line.strip() and not line.startswith("#"):
                step = _STEP.fullmatch(line.strip())
                assert step is not None, f"line {number + 1} is no step: {line}"
                yield number, *step.groups()  # type: ignore[misc]  # three texts

    async def tell(self) -> None:
        """Raises Deviation."""
        steps = list(self.steps())
        if steps and steps[0][2] == "brokers":
            self._brokers = int(steps.pop(0)[3])
        try:
            await self._start("")
            for number, who, what, rest in steps:
                try:
                    await self._step(who, what, rest)
                except (AssertionError, Closed, TimeoutError) as error:
                    told = "\n".join(self._lines[: number + 1])
                    raise Deviation(f"\n{told}\n{'^' * 40} {str(error) or type(error).__name__}\n") from None
        finally:
            await close_clients()
            await self._cluster.__aexit__(None, None, None)

    async def _step(self, who: str, what: str, rest: str) -> None:
        if what == ">":
            await self._send(who, rest)
        elif what == "<":
            await self._expect(who, rest)
        elif what == "breaks":
            await self._break(who)
        elif who == "clock":
            self._clock.ahead_s += float(what)
        else:
            await getattr(self, f"_{what}")(rest)

    # -- clients

    async def _send(self, who: str, words: str) -> None:
        packet, broker = packet_of(re.sub(r"\$\w+", lambda found: self._known[found[0]], words))
        if broker:
            client = self._clients[who] = await Raw.open(self._broker(broker).mqtt.port, packet.version)
            client.answers = False
        self._clients[who].send(packet)

    async def _expect(self, who: str, words: str) -> None:
        client = self._clients[who]
        if words == "closed":
            rest = await client.closed()
            assert not rest, f"before the end came {'; '.join(map(words_of, rest))}"
        elif words == "nothing":
            found = await client.ping()
            assert not found, f"there came {'; '.join(map(words_of, found))}"
        else:
            came = words_of(await client.packet())
            assert self._matches(words, came), f"there came {came}"

    def _matches(self, expected: str, found: str) -> bool:
        wanted, words = expected.split(), found.split()
        if len(wanted) != len(words):
            return False
        for want, word in zip(wanted, words, strict=True):
            key, _, value = want.partition("=")
            found_key, _, found_value = word.partition("=")
            if value.startswith("$") and key == found_key:
                if self._known.setdefault(value, found_value) != found_value:
                    return False
            elif not (want == word or (value == "*" and key == found_key)):
                return False
        return True

    async def _break(self, who: str) -> None:
        self._clients[who].abort()
        await self._clients[who].wait_closed()
        await eventually(self._all_seen, "the brokers notice")

    def _all_seen(self) -> bool:
        """Every connection that a broker serves stands, and what was let go is saved."""
        ports = {client.local_port for client in self._clients.values() if not client.is_closing}
        for broker in self._all():
            served = {connection.transport.get_extra_info("peername")[1] for connection in broker.mqtt.connections}
            if served - ports or broker.mqtt.sessions.letting_go:
                return False
        return True

    # -- the cluster

    def _all(self) -> list[BrokerServer]:
        return [node for node in self._cluster.nodes.values() if isinstance(node, BrokerServer)]

    def _broker(self, name: str) -> BrokerServer:
        node = self._cluster.nodes[name]
        assert isinstance(node, BrokerServer)
        return node

    async def _start(self, name: str) -> None:
        if name:
            await self._cluster.start_broker(name)
            return
        await self._cluster.start_coordinator()
        for number in range(self._brokers):
            await self._cluster.start_broker(f"broker-{number}")

    async def _stop(self, name: str) -> None:
        if name:
            await self._cluster.stop_broker(name)
            return
        await self._cluster.__aexit__(None, None, None)
        self._cluster = self._made()

    async def _kill(self, name: str) -> None:
        # Here, so that this module does not depend on a test.
        from ..actors.mqtt.test_sessions import crash

        broker = self._broker(name)
        del self._cluster.nodes[name]
        await crash(broker)

    async def _restart(self, name: str) -> None:
        assert name == "coordinator"
        await self._cluster.restart_coordinator()

    async def _discards(self, rest: str) -> None:
        """Retention takes everything that has been published."""
        store = self._cluster.coordinators["coordinator-0"].server.store
        lasts = {group: tail.last for group, tail in store.tails().items()}
        self._clock.ahead_s += RETENTION_S + 1
        await eventually(lambda: all([store.first_kept(group) > last for group, last in lasts.items()]), "retention")
