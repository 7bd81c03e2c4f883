"""Whole SkipClouds from seeds: joins, leaves, crashes, a bad network for many cycles; views heal, routing delivers."""

from __future__ import annotations

import random

import pytest

from lexicast.bench.srem.overlay_network import CloudNetworkSetting, OverlayNetwork
from lexicast.cluster.skipcloud.identifiers import CloudShape, levels_for, remoteness

BAD = CloudNetworkSetting(delay_cycles=1.5, loss=0.1, answer_cycles=4)
# A view of n places asks each n shuffles, and each of m + 1 levels has its turn: some rounds of that settle everything.
CYCLES_MAX = 150


def settle(network: OverlayNetwork) -> None:
    """Lets it come to rest, at most so many cycles."""
    begun = network.now
    while not network.settled():
        assert network.now < begun + CYCLES_MAX, list(network.unsettled())[:5]
        network.run(5)


def check_routing(network: OverlayNetwork, dice: random.Random) -> None:
    clusters = {member.digits for member in network.nodes}
    for number in range(200):
        target = network.shape.hashed(b"%d" % number)
        nearest = min(clusters, key=lambda each: remoteness(each, target, network.shape.base))
        routed = network.routed(dice.choice(sorted(network.nodes)), target)
        assert routed.member is not None
        assert routed.member.digits == nearest
        assert routed.hops <= network.shape.levels


def churn(network: OverlayNetwork, dice: random.Random, cycles: int) -> None:
    for _ in range(cycles):
        what = dice.random()
        known = sorted(network.nodes)
        if what < 0.4 or len(known) < 3:
            network.join(network.shape.digits(dice.randrange(network.shape.clusters)))
        elif what < 0.6:
            network.leave(dice.choice(known))
        elif what < 0.8:
            network.crash([dice.choice(known)])
        network.run(1)


@pytest.mark.parametrize("seed", range(6))
def test_views_heal_after_churn_in_a_bad_network_and_routing_delivers(seed: int) -> None:
    dice = random.Random(seed)
    base, members = dice.choice([2, 3, 4, 8]), dice.randrange(8, 60)
    shape = CloudShape(base, levels_for(members, base))
    network = OverlayNetwork(shape, seed, BAD)
    network.grown([shape.digits(dice.randrange(shape.clusters)) for _ in range(members)], 0.2)
    churn(network, dice, 60)
    network.setting = BAD._replace(loss=0.0)
    settle(network)
    check_routing(network, dice)


def test_hundreds_of_members_heal_after_half_of_them_have_died_at_once() -> None:
    dice = random.Random(7)
    shape = CloudShape(4, 3)
    network = OverlayNetwork(shape, 7)
    network.grown([shape.digits(number % shape.clusters) for number in range(200)], 0.05)
    settle(network)
    network.crash(dice.sample(sorted(network.nodes), 100))
    lost = [network.routed(member, shape.hashed(member.name.encode())).member is None for member in network.nodes]
    assert any(lost)
    settle(network)
    check_routing(network, dice)


def test_the_same_seed_gives_the_same_overlay() -> None:
    def run(seed: int) -> list[object]:
        network = OverlayNetwork(CloudShape(2, 3), seed, BAD)
        network.grown([network.shape.digits(number % 8) for number in range(16)], 0.5)
        churn(network, random.Random(1), 10)
        return [
            network.messages,
            [(member, view.contacts(0)) for member, node in network.nodes.items() for view in node.views],
        ]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_nobody_knows_for_long_who_has_left_and_the_messages_that_say_so_are_counted() -> None:
    network = OverlayNetwork(CloudShape(2, 2), 1)
    first, *_ = network.grown([network.shape.digits(number % 4) for number in range(12)], 1.0)
    settle(network)
    told = network.messages
    network.leave(first)
    assert network.messages > told
    settle(network)
    assert all(first not in view.members() for node in network.nodes.values() for view in node.views)
