"""Every client of `matrix` does all that is asked of it there, beside paho for Python, which does the other half."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import lexicast.mqtt as ours
from lexicast.actors.mqtt.connection import MqttConnection
from lexicast.actors.tls.development_certificates import DevelopmentAuthority
from lexicast.cluster.security.passwords import SHA512, hash_password

from ..support.certificates import authority, tls_port
from ..support.mqtt_harness import WAIT_S, Served, unique
from ..support.websockets import served_by_both, ws_port, wss_port
from .connected import Asked, Connected, Said
from .driven import Program
from .matrix import CLIENTS, FEATURES, LACKS
from .with_aiomqtt import Loop
from .with_mosquitto import MosquittoConnected
from .with_paho import PahoConnected

HERE = Path(__file__).parent
NPM = Path(sys.prefix) / "npm/node_modules"
USER, PASSWORD = "ada", "secret"
Connect = Callable[[Asked], Connected]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return authority(tmp_path_factory.mktemp("tls"), USER)


@pytest.fixture(scope="module")
def cluster(made: DevelopmentAuthority) -> Iterator[Served]:
    users = f"{USER}:{hash_password(PASSWORD.encode(), bytes(12), SHA512).text()}\n"
    knobs: dict[str, Any] = {"tls__user_from": "cn", "mqtt__allow_anonymous": "always"}
    with served_by_both(made, "optional", passwords=users.encode(), **knobs) as running:
        yield running


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Connect]]:
    """What connects with a client, begun when it is first wanted."""
    begun: dict[str, Connect] = {}
    with ExitStack() as stack:

        def connect_of(name: str) -> Connect:
            if name not in begun:
                begun[name] = _library(name, tmp_path_factory, stack)
            return begun[name]

        yield connect_of


def _library(name: str, folders: pytest.TempPathFactory, stack: ExitStack) -> Connect:
    if name == "ours":
        return lambda asked: PahoConnected(asked, ours.Client)
    if name == "paho":
        return PahoConnected
    if name == "mosquitto":
        if not shutil.which("mosquitto_sub"):
            pytest.skip("mosquitto_pub and mosquitto_sub are not installed (make debian-test)")
        return MosquittoConnected
    if name == "aiomqtt":
        loop = Loop()
        stack.callback(loop.end)
        return loop.connect
    if name == "paho_c":
        return _paho_c(folders.mktemp("paho_c"))
    program = _npm()
    stack.callback(program.end)
    return program.connect


def _npm() -> Program:
    if not shutil.which("node") or not (NPM / "mqtt").exists():
        pytest.skip("npm's mqtt is not installed (make npm-test)")
    return Program(["node", str(HERE / "client.js")], os.environ | {"NODE_PATH": str(NPM)})


def _paho_c(folder: Path) -> Connect:
    """A process a connection: beside others one takes a second to open, for paho C waits that long for those."""
    compiler, header = shutil.which("cc"), Path("/usr/include/MQTTAsync.h")
    if compiler is None or not header.exists():
        pytest.skip("paho C or a C compiler is not installed (make debian-test)")
    program, libraries = str(folder / "client"), ["-lpaho-mqtt3as", "-lpthread"]
    subprocess.run([compiler, "-Wall", "-Werror", "-o", program, str(HERE / "client.c"), *libraries], check=True)
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return lambda asked: Program([program], environment).connect_alone(asked)


class Case:
    """A client and a version in front of the cluster; `root`: topics of its own."""

    def __init__(self, connect: Connect, version: int, running: Served, made: DevelopmentAuthority) -> None:
        self.running, self.made = running, made
        self._connect, self._version = connect, version
        self.root = unique("c/")
        self._opened: list[Connected] = []

    def client(self, client_id: str = "", **options: Any) -> Connected:
        """The one that is looked at."""
        return self._open(self._connect, client_id, **options)

    def other(self) -> Connected:
        """The other half."""
        return self._open(PahoConnected, "")

    def _open(self, connect: Connect, client_id: str, **options: Any) -> Connected:
        asked = Asked("mqtt", self.running.port, client_id or unique("c"), self._version)._replace(**options)
        self._opened.append(connect(asked))
        return self._opened[-1]

    def close(self, client: Connected) -> None:
        """Close one before the end."""
        self._opened.remove(client)
        client.close()

    def end(self) -> None:
        """Close all."""
        for client in self._opened:
            client.close()

    def connections(self, client_id: str) -> list[MqttConnection]:
        """The broker's, of a client (mosquitto_pub's names begin so)."""
        found = list(self.running.broker().mqtt.connections)
        return [each for each in found if each.client_id.startswith(client_id)]

    def break_link(self, client_id: str) -> None:
        """Its connection breaks, without a word of either side."""

        async def broken() -> int:
            found = self.connections(client_id)
            for each in found:
                each.transport.abort()
            return len(found)

        assert self.running.run(broken())

    def break_after(self, client_id: str, publications: int) -> Future[None]:
        """Its connection breaks so as soon as it has brought so many publications. (Whoever waited for them to arrive
        somewhere found mosquitto_pub gone: it had sent them all.)"""

        async def broken() -> None:
            while True:
                for each in self.connections(client_id):
                    publisher = each.served.publisher if each.served is not None else None
                    if publisher is not None and publisher.records >= publications:
                        each.transport.abort()
                        return
                await asyncio.sleep(0)

        return self.running.begin(broken())


CELLS = [
    pytest.param(name, feature, version, id=f"{name}-{feature}-{version}")
    for name in CLIENTS
    for feature, of in FEATURES.items()
    for version in of.versions
    if (name, feature) not in LACKS
]


@pytest.mark.parametrize(("name", "feature", "version"), CELLS)
def test_clients(
    cluster: Served,
    made: DevelopmentAuthority,
    libraries: Callable[[str], Connect],
    name: str,
    feature: str,
    version: int,
) -> None:
    case = Case(libraries(name), version, cluster, made)
    try:
        SCENARIOS[feature](case)
    finally:
        case.end()


# -- what the features are


def both_ways(case: Case, payloads: Sequence[bytes], qos: int, **options: Any) -> None:
    """All that the client publishes comes to the other, and the other way round, in order."""
    client, other = case.client(**options), case.other()
    client.subscribe(f"{case.root}/in", qos)
    other.subscribe(f"{case.root}/out", qos)
    for sender, taker, topic in ((client, other, "out"), (other, client, "in")):
        said = [Said(f"{case.root}/{topic}", payload, qos) for payload in payloads]
        sender.publish(said)
        sender.published()
        assert taker.received(len(said)) == said


def numbers(count: int) -> list[bytes]:
    """Payloads that tell in what order they come."""
    return [b"%d" % number for number in range(count)]


def qos_0(case: Case) -> None:
    both_ways(case, numbers(50), 0)


def qos_1(case: Case) -> None:
    both_ways(case, numbers(50), 1)


def qos_2(case: Case) -> None:
    both_ways(case, numbers(50), 2)


def large(case: Case) -> None:
    both_ways(case, [bytes(range(256)) * 1_200], 1)


def retained(case: Case) -> None:
    client, other = case.client(), case.other()
    for sender, topic in ((client, "out"), (other, "in")):
        sender.publish([Said(f"{case.root}/{topic}", b"kept", 1, True)])
        sender.published()
    client.subscribe(f"{case.root}/in", 1)
    other.subscribe(f"{case.root}/out", 1)
    assert client.received(1) == [Said(f"{case.root}/in", b"kept", 1, True)]
    assert other.received(1) == [Said(f"{case.root}/out", b"kept", 1, True)]


def will(case: Case) -> None:
    name, other = unique("will"), case.other()
    other.subscribe(f"{case.root}/will", 1)
    for breaks in (False, True):
        client = case.client(name, will=(f"{case.root}/will", "gone" if breaks else "never"))
        if client.wants_will and not breaks:
            continue
        client.subscribe(f"{case.root}/x", 1)
        if breaks:
            case.break_link(name)
        else:
            case.close(client)
    assert other.received(1) == [Said(f"{case.root}/will", b"gone", 1)]


def session(case: Case) -> None:
    name, topic, other = unique("kept"), f"{case.root}/a", case.other()
    client = case.client(name, keeps=True)
    assert not client.session_present
    client.subscribe(topic, 2)
    case.close(client)
    meanwhile = [Said(topic, b"%d" % number, 1 + number % 2) for number in range(20)]
    other.publish(meanwhile)
    other.published()
    client = case.client(name, keeps=True)
    assert client.session_present is not False
    if client.subscribes_again:
        client.subscribe(topic, 2)
    # paho for Python shows one of QoS 2 when it is released, later ones of QoS 1 before it.
    assert sorted(client.received(20), key=by_qos) == sorted(meanwhile, key=by_qos)
    nothing_more(client, other, topic)


def by_qos(said: Said) -> int:
    """Those of one QoS are in order."""
    return said.qos


def nothing_more(client: Connected, other: Connected, topic: str) -> None:
    """What is published now is the next that the client gets."""
    last = [Said(topic, b"last", 2)]
    other.publish(last)
    other.published()
    assert client.received(1) == last


def break_sending(case: Case) -> None:
    name, topic, other = unique("sends"), f"{case.root}/a", case.other()
    other.subscribe(topic, 2)
    client = case.client(name, keeps=True)
    said = [Said(topic, payload, 2) for payload in numbers(300)]
    broken = case.break_after(name, 40)
    client.publish(said)
    broken.result(WAIT_S)
    client.published()
    assert other.received(300) == said
    nothing_more(other, case.other(), topic)


def break_receiving(case: Case) -> None:
    name, topic, other = unique("takes"), f"{case.root}/a", case.other()
    client = case.client(name, keeps=True)
    client.subscribe(topic, 2)
    said = [Said(topic, payload, 2) for payload in numbers(300)]
    other.publish(said)
    first = client.received(40)
    case.break_link(name)
    assert [*first, *client.received(260)] == said
    other.published()
    nothing_more(client, other, topic)


def shared(case: Case) -> None:
    members, other, group = [case.client(), case.client()], case.other(), unique("g")
    for member in members:
        member.subscribe(f"$share/{group}/{case.root}/+", 1)
    said = [Said(f"{case.root}/{number % 40}", b"%d" % number, 1) for number in range(80)]
    other.publish(said)
    other.published()
    got: list[list[Said]] = [[], []]
    until_s = time.monotonic() + WAIT_S
    while sum(map(len, got)) < len(said) and time.monotonic() < until_s:
        for member, own in zip(members, got, strict=True):
            own += member.so_far()
        time.sleep(0.01)
    assert sorted(got[0] + got[1]) == sorted(said)
    assert all(got)


def properties(case: Case) -> None:
    client, other = case.client(), case.other()
    client.subscribe(f"{case.root}/in", 1)
    other.subscribe(f"{case.root}/out", 1)
    for sender, taker, topic in ((client, other, "out"), (other, client, "in")):
        said = [Said(f"{case.root}/{topic}", b"x", 1, False, ("unit", "mm"), f"{case.root}/answers", "17")]
        sender.publish(said)
        sender.published()
        assert taker.received(1) == said


def since(case: Case) -> None:
    client, other = case.client(), case.other()
    said = [Said(f"{case.root}/a", payload, 1) for payload in numbers(6)]
    other.publish(said[:3])
    other.published()
    client.subscribe(f"{case.root}/#", 1, ("since", "beginning"))
    other.publish(said[3:])
    other.published()
    assert client.received(6) == said


def aliases_in(case: Case) -> None:
    name, other = unique("aliases"), case.other()
    client = case.client(name, aliases=64)
    client.subscribe(f"{case.root}/+", 2)
    said = [Said(f"{case.root}/{number % 3}", b"%d" % number, number % 2) for number in range(30)]
    for each in said:
        other.publish([each])
        other.published()
    assert client.received(30) == said
    (connection,) = case.connections(name)
    assert connection.served is not None
    assert connection.served.subscriber.known_aliases.bit_count() == 3


def aliases_out(case: Case) -> None:
    name, other = unique("aliases"), case.other()
    other.subscribe(f"{case.root}/a", 1)
    client = case.client(name)
    said = [Said(f"{case.root}/a", b"%d" % number, 1, alias=1) for number in range(10)]
    client.publish(said)
    client.published()
    assert other.received(10) == [each._replace(alias=0) for each in said]


def user(case: Case) -> None:
    logs_in(case, "mqtt", case.running.port, user=USER, password=PASSWORD)


def tls(case: Case) -> None:
    both_ways(case, numbers(50), 1, way="mqtts", port=tls_port(case.running), ca=str(case.made.path("ca", "crt")))


def certificate(case: Case) -> None:
    files = {"ca": ("ca", "crt"), "certificate": (USER, "crt"), "key": (USER, "key")}
    paths = {option: str(case.made.path(*of)) for option, of in files.items()}
    logs_in(case, "mqtts", tls_port(case.running), **paths)


def logs_in(case: Case, way: str, port: int, **options: Any) -> None:
    """The broker knows who it is."""
    name = unique("user")
    client = case.client(name, way=way, port=port, **options)
    client.subscribe(f"{case.root}/in", 1)
    (connection,) = case.connections(name)
    assert connection._login.user == USER
    both_ways(case, numbers(5), 1, way=way, port=port, **options)


def websocket(case: Case) -> None:
    both_ways(case, [*numbers(50), bytes(200_000)], 1, way="ws", port=ws_port(case.running))


def websocket_tls(case: Case) -> None:
    both_ways(case, numbers(50), 1, way="wss", port=wss_port(case.running), ca=str(case.made.path("ca", "crt")))


SCENARIOS: dict[str, Callable[[Case], None]] = {
    scenario.__name__: scenario
    for scenario in (
        qos_0,
        qos_1,
        qos_2,
        large,
        retained,
        will,
        session,
        break_sending,
        break_receiving,
        shared,
        properties,
        since,
        aliases_in,
        aliases_out,
        user,
        tls,
        certificate,
        websocket,
        websocket_tls,
    )
}
