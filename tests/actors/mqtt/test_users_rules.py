"""Users and their rules as paho's clients see them, over two brokers that follow the coordination server's files."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from lexicast.cluster.security.passwords import SHA512, hash_password, with_user

from ...support.mqtt_harness import HOST, Served, served, unique

WAIT_S = 30.0
NOT_AUTHORIZED = 0x87
RULES = """
user ada
topic readwrite plant/#
topic deny plant/secret/#
topic nohistory plant/meter

user boss
topic readwrite #

pattern readwrite own/%u/#
"""


def passwords() -> bytes:
    """ada, bob and boss, whose passwords are their names."""
    data = b""
    for user in ("ada", "bob", "boss"):
        data = with_user(data, user, hash_password(user.encode(), user.encode().ljust(12), SHA512).text())
    return data


@pytest.fixture
def cluster() -> Iterator[Served]:
    with served(brokers=2, passwords=passwords(), rules=RULES.encode()) as running:
        yield running


def give(cluster: Served, rules: str) -> None:
    """Other rules; returns once both brokers go by them."""
    cluster.run(cluster.cluster.coordination.give_security({"passwords": passwords(), "rules": rules.encode()}))
    wait_for(lambda: all(cluster.broker(at)._security.files.rules == rules.encode() for at in range(2)))


def wait_for(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


class Paho:
    """A client of paho's, MQTT 5, whose calls return when they are answered."""

    def __init__(self, port: int, user: str, client_id: str = "") -> None:
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id or unique("paho"), protocol=MQTTProtocolVersion.MQTTv5
        )
        self._answers: queue.Queue[int] = queue.Queue()
        self.came: queue.Queue[tuple[str, bytes]] = queue.Queue()
        client.username_pw_set(user, user)
        client.on_connect = lambda *said: self._answers.put(said[3].value)
        client.on_subscribe = lambda *said: self._answers.put(said[3][0].value)
        client.on_publish = lambda *said: self._answers.put(said[3].value)
        client.on_message = lambda client, data, message: self.came.put((message.topic, bytes(message.payload)))
        client.connect(HOST, port, clean_start=True)
        client.loop_start()
        assert self._answers.get(timeout=WAIT_S) == 0

    def publish(self, topic: str, payload: bytes, **more: Any) -> int:
        """QoS 1; the reason code."""
        self._client.publish(topic, payload, 1, **more)
        return self._answers.get(timeout=WAIT_S)

    def subscribe(self, name: str, **asked: str) -> int:
        """The reason code."""
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]  # paho has no types there
        if asked:
            properties.UserProperty = list(asked.items())
        self._client.subscribe(name, 1, properties=properties)
        return self._answers.get(timeout=WAIT_S)

    def get(self, count: int) -> list[tuple[str, bytes]]:
        """What comes next."""
        return [self.came.get(timeout=WAIT_S) for _ in range(count)]

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def test_users_have_the_rights_of_their_rules_at_every_broker(cluster: Served) -> None:
    with ExitStack() as stack:

        def client(user: str, broker: int) -> Paho:
            made = Paho(cluster.broker(broker).mqtt.port, user)
            stack.callback(made.close)
            return made

        boss, ada, bob = client("boss", 0), client("ada", 1), client("bob", 1)
        # Publishing, retained, before anybody is subscribed.
        assert boss.publish("plant/meter", b"1", retain=True) == 0x00
        assert boss.publish("plant/secret/x", b"1", retain=True) == 0x00
        assert ada.publish("plant/secret/y", b"no") == NOT_AUTHORIZED == bob.publish("plant/z", b"no")
        assert bob.publish("own/bob/x", b"mine", retain=True) == 0x00
        assert ada.publish("own/bob/x", b"not mine") == NOT_AUTHORIZED
        # Subscribing, what is retained, and `#`.
        assert bob.subscribe("plant/#") == NOT_AUTHORIZED == ada.subscribe("own/bob/#")
        assert ada.subscribe("#") == bob.subscribe("#") == 1
        assert ada.get(1) == [("plant/meter", b"1")]
        assert bob.get(1) == [("own/bob/x", b"mine")]
        for topic in ("plant/secret/x", "own/bob/y", "plant/a", "own/ada/y", "elsewhere"):
            assert boss.publish(topic, b"live") == 0x00
        assert ada.get(2) == [("plant/a", b"live"), ("own/ada/y", b"live")]
        assert bob.get(1) == [("own/bob/y", b"live")]
        # The past.
        late = client("ada", 0)
        assert late.subscribe("plant/meter", since="10m") == NOT_AUTHORIZED
        assert late.subscribe("plant/#", since="10m") == 1
        assert late.get(1) == [("plant/a", b"live")]
        assert ada.came.empty()
        assert bob.came.empty()


def test_a_right_that_is_taken_away_in_the_middle_of_a_subscription(cluster: Served) -> None:
    boss, ada = (Paho(cluster.broker(at).mqtt.port, user) for at, user in enumerate(("boss", "ada")))
    try:
        assert ada.subscribe("plant/#") == 1
        assert boss.publish("plant/a", b"1") == 0x00
        assert ada.get(1) == [("plant/a", b"1")]
        give(cluster, RULES.replace("topic readwrite plant/#", "topic read plant/b"))
        assert boss.publish("plant/a", b"2") == boss.publish("plant/b", b"3") == 0x00
        assert ada.get(1) == [("plant/b", b"3")]
        assert ada.publish("plant/b", b"no") == NOT_AUTHORIZED
        give(cluster, RULES)
        assert ada.publish("plant/a", b"4") == 0x00
        assert ada.get(1) == [("plant/a", b"4")]
    finally:
        boss.close()
        ada.close()


def test_what_a_user_left_who_may_not_write_there_any_more_stays_away(cluster: Served) -> None:
    bob = Paho(cluster.broker(0).mqtt.port, "bob", "one-id")
    assert bob.publish("own/bob/x", b"bob's", retain=True) == 0x00
    bob.close()
    # Another user with the same client id, who may write there: it is the user that counts.
    give(cluster, RULES.replace("pattern readwrite", "pattern read") + "user ada\ntopic write own/bob/#\n")
    ada = Paho(cluster.broker(1).mqtt.port, "ada", "one-id")
    boss = Paho(cluster.broker(1).mqtt.port, "boss")
    try:
        assert ada.publish("own/bob/y", b"ada's", retain=True) == 0x00
        assert boss.subscribe("own/#") == 1
        assert boss.get(1) == [("own/bob/y", b"ada's")]
        give(cluster, RULES)
        again = Paho(cluster.broker(0).mqtt.port, "boss")
        assert again.subscribe("own/bob/x") == 1
        assert again.get(1) == [("own/bob/x", b"bob's")]
        again.close()
        assert boss.came.empty()
    finally:
        ada.close()
        boss.close()


def test_broken_rules_are_not_taken(cluster: Served) -> None:
    with pytest.raises(Exception, match="line 1: 'topics' begins no rule"):
        give(cluster, "topics read #\n")
    ada = Paho(cluster.broker(0).mqtt.port, "ada")
    assert ada.publish("plant/a", b"as before") in (0x00, 0x10)
    ada.close()
