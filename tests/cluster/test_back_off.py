"""Who guesses waits: one who is right again does not, many behind one address hold each other up for moments only."""

from __future__ import annotations

from lexicast.cluster.security.back_off import (
    ADDRESS_FREE,
    ADDRESS_MOST_S,
    ENTRIES_MAX,
    FORGET_S,
    PAIR_FREE,
    PAIR_MOST_S,
    BackOff,
    party,
)

HERE, THERE = "192.0.2.7", "192.0.2.8"


def guess(back_off: BackOff, times: int, address: str = HERE, user: str = "ada", now_s: float = 0.0) -> None:
    for _ in range(times):
        back_off.failed(address, user, now_s)


def test_a_few_mistakes_are_free_and_each_further_one_doubles_the_wait() -> None:
    back_off = BackOff()
    guess(back_off, PAIR_FREE)
    assert back_off.wait_s(HERE, "ada", 0.0) == 0
    waits = []
    for _ in range(9):
        guess(back_off, 1)
        waits.append(back_off.wait_s(HERE, "ada", 0.0))
    assert waits == [1, 2, 4, 8, 16, 32, PAIR_MOST_S, PAIR_MOST_S, PAIR_MOST_S]
    assert back_off.wait_s(HERE, "ada", 30.0) == 30
    assert back_off.wait_s(HERE, "bob", 0.0) == back_off.wait_s(THERE, "ada", 0.0) == 0


def test_a_success_forgets_the_pairs_failures() -> None:
    back_off = BackOff()
    guess(back_off, PAIR_FREE + 1)
    back_off.succeeded(HERE, "ada")
    assert back_off.wait_s(HERE, "ada", 0.0) == 0


def test_who_tries_many_names_is_held_up_by_its_address_and_for_moments_only() -> None:
    back_off = BackOff()
    for at in range(ADDRESS_FREE + 20):
        back_off.failed(HERE, f"user {at}", 0.0)
    assert back_off.wait_s(HERE, "somebody else", 0.0) == ADDRESS_MOST_S
    assert back_off.wait_s(THERE, "somebody else", 0.0) == 0
    back_off.succeeded(HERE, "user 1")  # whoever has an account may not guess those of others for it
    assert back_off.wait_s(HERE, "somebody else", 0.0) == ADDRESS_MOST_S


def test_failures_are_forgotten() -> None:
    back_off = BackOff()
    guess(back_off, 20)
    assert back_off.wait_s(HERE, "ada", FORGET_S + 1) == 0
    guess(back_off, 1, now_s=FORGET_S + 1)
    assert back_off.wait_s(HERE, "ada", FORGET_S + 1) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    back_off = BackOff()
    for at in range(ADDRESS_FREE + 1):
        back_off.failed(f"2001:db8:0:7:{at:x}::1", f"user {at}", 0.0)
    assert back_off.wait_s("2001:db8:0:7::2", "x", 0.0) > 0
    assert back_off.wait_s("2001:db8:0:8::2", "x", 0.0) == 0
    guess(back_off, ADDRESS_FREE + 1, address="::ffff:192.0.2.9", user="")
    assert back_off.wait_s("192.0.2.9", "x", 0.0) > 0
    assert back_off.wait_s("::1", "x", 0.0) == 0


def test_whose_address_it_is() -> None:
    assert party("2001:db8:1:2:3::4") == party("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert party("::ffff:192.0.2.1") == party("192.0.2.1") == "192.0.2.1"
    assert party("fe80::1%eth0") == "fe80::/64"


def test_it_is_bounded() -> None:
    back_off = BackOff()
    for at in range(ENTRIES_MAX):
        back_off.failed(f"10.{at >> 16}.{at >> 8 & 255}.{at & 255}", "ada", 0.0)
    assert len(back_off) == ENTRIES_MAX
