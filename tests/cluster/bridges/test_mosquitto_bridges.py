"""Bridges of a mosquitto.conf: what becomes of each line."""

from __future__ import annotations

import pytest

from lexicast.cluster.bridges.definitions import BridgedTopic, read_definitions
from lexicast.cluster.bridges.mosquitto_bridges import carried_bridges
from lexicast.cluster.errors import ConfigError

CONF = """
# A site.
listener 1883
password_file /etc/mosquitto/passwords

connection site 7
address broker.example:8884 other.example
bridge_protocol_version mqttv50
bridge_cafile /etc/ssl/ca.pem
bridge_certfile /etc/ssl/own.pem
bridge_keyfile /etc/ssl/own.key
bridge_insecure false
remote_username lexicast
remote_password very secret
remote_clientid plant
cleansession true
keepalive_interval 30
restart_timeout 2 40
start_type automatic
notifications false
try_private false
topic # out 1 site/7/ plant/
topic commands/# in 2
topic "" both 0 here/state there/state
topic a/# out 1 site/7/

connection second
address 192.0.2.1
start_type lazy
bridge_alpn mqtt
topic sensors/#
"""


def test_each_bridge_is_carried_over_and_its_file_is_taken() -> None:
    found = carried_bridges(CONF)
    first, second = read_definitions(found.toml())
    assert (first.name, first.address, first.protocol) == ("site-7", "mqtts://broker.example:8884", "5")
    assert (first.user, first.client_id, first.clean_start, first.keep_alive_s) == ("lexicast", "plant", True, 30)
    assert (first.ca, first.certificate, first.key) == ("/etc/ssl/ca.pem", "/etc/ssl/own.pem", "/etc/ssl/own.key")
    assert (first.verify_host, first.tells_bridge, first.reconnect_s) == (True, False, (2.0, 40.0))
    assert first.topic == (
        BridgedTopic("#", "out", 1, "site/7/", "plant/"),
        BridgedTopic("commands/#", "in", 2),
        BridgedTopic("", "both", 0, "here/state", "there/state"),
    )
    # As Mosquitto has it where nothing is said.
    assert (second.address, second.protocol, second.tells_bridge) == ("mqtt://192.0.2.1:1883", "3.1.1", True)
    assert (second.reconnect_s, second.topic) == ((5.0, 30.0), (BridgedTopic("sensors/#", "out", 0),))


def test_what_is_not_carried_over_is_told_without_secrets() -> None:
    found = carried_bridges(CONF)
    told = {each.text: each.why for each in found.left}
    assert list(told) == [
        "other.example",
        "remote_password",
        "notifications false",
        "topic a/# out 1 site/7/",
        "start_type lazy",
        "bridge_alpn mqtt",
    ]
    assert "password_file" in told["remote_password"]
    assert "overlaps '#'" in told["topic a/# out 1 site/7/"]
    assert "very secret" not in found.toml()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("connection a\ntopic #", "line 1: the connection has no address"),
        ("connection a\naddress b\ntopic # up", "line 3: 'up' is no direction"),
        ("connection a\naddress b\nkeepalive_interval long", "line 3: 'long' is no number"),
        ("connection a\naddress\ntopic #", "line 2: address has no value"),
        ("connection a\naddress b\nrestart_timeout", "line 3: restart_timeout has no value"),
    ],
)
def test_what_is_no_configuration_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        carried_bridges(text)
    assert str(error.value).startswith(told)


def test_the_longest_expiry_of_a_session_is_a_number() -> None:
    text = "connection a\naddress b\nbridge_session_expiry_interval 4294967295\ntopic #\n"
    assert read_definitions(carried_bridges(text).toml())[0].session_expiry_s == 0xFFFF_FFFF


def test_two_of_one_name_get_two_names() -> None:
    text = "connection a b\naddress x\ntopic #\nconnection a-b\naddress y\ntopic #\n"
    assert [each.name for each in read_definitions(carried_bridges(text).toml())] == ["a-b", "a-b-2"]
