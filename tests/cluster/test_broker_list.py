"""The list of brokers that a broker tells: who stays, the backups first, bounded; looked at before it is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from lexicast.cluster.errors import PeerError
from lexicast.cluster.membership import Member, Members
from lexicast.cluster.protocol.broker_list import BROKERS_TOLD_MAX, BrokerList, broker_list, read_broker_list


def cluster(count: int, **more: Any) -> Members:
    brokers = {
        f"b{i}": Member(f"b{i}", 1, (f"unix:/run/b{i}.sock", f"tcp:10.0.0.{i}:{1_000 + i}"), f"n{i}", 1)
        for i in range(count)
    }
    return replace(Members(1, {}, brokers, {}), **more)


def test_it_has_the_tcp_addresses_of_those_that_stay() -> None:
    members = cluster(4, leaving=frozenset({"n1"}), backups={"b0": ("b1", "b3"), "b2": ("b0",)})
    told = broker_list(members, "b0")
    assert told.addresses == {f"b{i}": (f"tcp:10.0.0.{i}:{1_000 + i}",) for i in (0, 2, 3)}
    assert told.backups == ("b3",)


def test_of_many_it_has_a_part_that_differs_from_broker_to_broker_and_the_backups() -> None:
    backups = {f"b{i}": (f"b{(i + 1) % 500}", f"b{(i + 2) % 500}") for i in range(500)}
    members = cluster(500, backups=backups)
    lists = [broker_list(members, f"b{i}") for i in range(100)]
    assert {len(told.addresses) for told in lists} == {BROKERS_TOLD_MAX}
    assert all(told.addresses.keys() >= {f"b{i}", *told.backups} for i, told in enumerate(lists))
    assert len({name for told in lists for name in told.addresses}) == 500


def test_it_is_read_as_it_was_told() -> None:
    told = broker_list(cluster(3, backups={"b0": ("b2",)}), "b0")
    wire = msgpack.unpackb(msgpack.packb(told), use_list=False)
    assert read_broker_list(wire) == told


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        ({}, (), ()),
        ({"b": "tcp:h:1"}, ()),
        ({"b": ("unix:/etc/x",)}, ()),
        ({"b": ("tcp:h:0",)}, ()),
        ({"b": ("tcp:h:65536",)}, ()),
        ({"b": ("tcp::1",)}, ()),
        ({"b": ("tcp:h:\u0661",)}, ()),
        ({"b": ("tcp:" + "h." * 150 + "h:1",)}, ()),
        ({"b": ("tcp:" + "h" * 64 + ":1",)}, ()),
        ({"b": ("tcp:a..b:1",)}, ()),
        ({"b": ("tcp:a\0b:1",)}, ()),
        ({"b": ("tcp:h:1\n",)}, ()),
        ({"": ("tcp:h:1",)}, ()),
        ({7: ("tcp:h:1",)}, ()),
        ({}, ("",)),
        ({}, (b"b",)),
        ({f"b{i}": ("tcp:h:1",) for i in range(BROKERS_TOLD_MAX + 1)}, ()),
        ({}, tuple(f"b{i}" for i in range(BROKERS_TOLD_MAX + 1))),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_list_is_refused(value: Any) -> None:
    with pytest.raises(PeerError, match="list of"):
        read_broker_list(value)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1%eth0", "broker-0.example.org.", "node_1"])
def test_hosts_by_name_and_by_number(host: str) -> None:
    told = BrokerList({"b": (f"tcp:{host}:65535",)}, ())
    assert read_broker_list((told.addresses, told.backups)) == told


def test_an_empty_list_is_one() -> None:
    assert read_broker_list(({}, ())) == BrokerList({}, ())
