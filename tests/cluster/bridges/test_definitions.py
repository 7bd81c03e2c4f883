"""`bridges.toml`: what is taken, and what is refused with which words."""

from __future__ import annotations

import pytest

from lexicast.cluster.bridges.definitions import BridgedTopic, read_definitions, start_of
from lexicast.cluster.errors import ConfigError

WHOLE = """
[site-7]
address = "mqtts://broker.example"
user = "lexicast"
password_file = "site.password"
ca = "ca.pem"
certificate = "own.pem"
key = "own.key"
protocol = "5"
client_id = "plant"
clean_start = false
session_expiry_s = 3600
keep_alive_s = 30
reconnect_s = [1, 60]
inflight_max = 20
receive_max = 50
batch_bytes = 4096
batch_s = 0.1
compress = true
topic = [
    { filter = "#", direction = "out", qos = 1, local = "site/7/", remote = "", start = "10m" },
    { filter = "commands/#", direction = "in", qos = 2 },
]
"""
HEAD = '[site]\naddress = "mqtt://host"\n'
TOPIC = "[[site.topic]]\n"
TWO = (
    "[site]\naddress = 'mqtt://host'\nclient_id = 'x'\n[[site.topic]]\n"
    "[other]\naddress = 'mqtt://{}'\nclient_id = 'x'\n[[other.topic]]\n"
)


def test_a_whole_file_is_read() -> None:
    (found,) = read_definitions(WHOLE)
    assert (found.name, found.endpoint, found.tls, found.reconnect_s) == (
        "site-7",
        ("broker.example", 8883),
        True,
        (1.0, 60.0),
    )
    assert found.files() == {
        "password_file": "site.password",
        "ca": "ca.pem",
        "certificate": "own.pem",
        "key": "own.key",
    }
    out, back = found.topic
    assert out == BridgedTopic("#", "out", 1, "site/7/", "", "10m")
    assert (back.goes_out, back.comes_in, back.qos) == (False, True, 2)


def test_several_bridges_each_with_what_is_left_out_as_it_is_by_default() -> None:
    text = HEAD + TOPIC + HEAD.replace("site", "other") + "[[other.topic]]\ndirection = 'both'\n"
    first, second = read_definitions(text)
    assert (first.name, first.remote_name, first.topic) == ("site", "host:1883", (BridgedTopic(),))
    assert second.topic[0].goes_out
    assert second.topic[0].comes_in
    assert start_of(BridgedTopic()) is None
    assert start_of(BridgedTopic(start="beginning")) == "beginning"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("address = 'mqtt://host'", "address: it stands outside of a bridge"),
        ("['a b']\naddress = 'mqtt://host'", "[a b]: a bridge's name has"),
        ("[site]\n" + TOPIC, "[site]: address = ''"),
        ("[site]\naddress = 'host:1883'\n" + TOPIC, "write 'mqtt://HOST:PORT'"),
        ("[site]\naddress = 'mqtt://host:70000'\n" + TOPIC, "write 'mqtt://HOST:PORT'"),
        ("[site]\naddress = 'mqtt://ada:secret@host'\n" + TOPIC, "give user and password_file"),
        ("[site]\naddress = 'mqtt://ada:secret@host:70000'\n" + TOPIC, "so that the address can be shown"),
        (HEAD, "it has 1 to 100 topics"),
        (HEAD + "colour = 1\n" + TOPIC, "[site]: there is no 'colour'; there are address,"),
        (HEAD + "keep_alive_s = 'long'\n" + TOPIC, "[site]: keep_alive_s = 'long': it is a whole number"),
        (HEAD + "keep_alive_s = true\n" + TOPIC, "it is a whole number"),
        (HEAD + "keep_alive_s = 1\n" + TOPIC, "it is from 5 to 65535"),
        (HEAD + "protocol = '4'\n" + TOPIC, "it is one of '5', '3.1.1'"),
        (HEAD + "reconnect_s = [60, 1]\n" + TOPIC, "the shortest and the longest pause"),
        (HEAD + "ca = 'ca.pem'\n" + TOPIC, "ca: these are for TLS"),
        (HEAD.replace("mqtt:", "mqtts:") + "key = 'own.key'\n" + TOPIC, "certificate and key belong together"),
        (HEAD + "protocol = '3.1.1'\npassword_file = 'x'\n" + TOPIC, "no password without a user"),
        (HEAD + TOPIC + "direction = 'up'", "[[site.topic]] number 1: direction = 'up': it is one of"),
        (HEAD + TOPIC + "qos = 3", "qos = 3: it is from 0 to 2"),
        (HEAD + TOPIC + "filter = 'a#'", "number 1: "),
        (HEAD + TOPIC + "local = '+/'", "without '+' and '#'"),
        (HEAD + TOPIC + "local = '$SYS/'", "each broker's own"),
        (HEAD + TOPIC + "filter = '$SYS/#'", "each broker's own"),
        (HEAD + TOPIC + "start = 'soon'", "number 1: start: "),
        (HEAD + TOPIC + "filter = 'a/#'\n" + TOPIC + "filter = 'a/b'", "'a/#' and 'a/b' on their way out"),
        (HEAD + TOPIC + "direction = 'both'\n" + TOPIC + "direction = 'in'", "'#' and '#' on their way in"),
        (TWO.format("host"), "[other]: client_id = 'x': [site] has it at the same broker"),
        ("[site", "Expected ']'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_definitions(text)
    assert told in str(error.value)


def test_different_brokers_may_know_two_bridges_by_the_same_client_id() -> None:
    assert len(read_definitions(TWO.format("elsewhere"))) == 2


def test_what_goes_different_ways_may_overlap() -> None:
    text = HEAD + TOPIC + "direction = 'out'\n" + TOPIC + "direction = 'in'"
    assert len(read_definitions(text)[0].topic) == 2
