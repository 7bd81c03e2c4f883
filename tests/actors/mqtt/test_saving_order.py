"""Which sessions are saved next: nobody is forgotten, the most unsaved come first, few are looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.mqtt.owning.saving_order import LAGGING_S, ROUNDS_CHOSEN, STALE_LOOK_S, STALE_S, SavingOrder
from lexicast.actors.mqtt.session import Session


@dataclass
class Subscriber:
    lagging: dict[int, int] = field(default_factory=dict)


@dataclass
class Owner:
    session: Session
    subscriber: Subscriber = field(default_factory=Subscriber)


def served(*client_ids: str, expiry_s: int = 60) -> dict[str, Owner]:
    return {name: Owner(Session(name, b"u", 1, expiry_s=expiry_s)) for name in client_ids}


def send(order: SavingOrder, owner: Owner, count: int = 1) -> None:
    owner.session.sent += count
    order.sent_to({owner.session.client_id: None})


def take(
    order: SavingOrder, owners: dict[str, Owner], now_s: float, most: int, saving: Collection[str] = ()
) -> list[str]:
    for _ in order.choosing(owners, now_s, most, saving):
        pass
    return order.take(owners, now_s, most, saving)


def save(owner: Owner, now_s: float) -> None:
    owner.session.sent_saved, owner.session.saved_s = owner.session.sent, now_s


def test_the_most_unsaved_come_first_and_nobody_comes_who_got_nothing() -> None:
    order, owners = SavingOrder(), served("a", "b", "c", "d")
    for name, count in (("a", 1), ("b", 5), ("c", 3)):
        send(order, owners[name], count)
    assert take(order, owners, 1.0, 2) == ["b", "c"]
    for name in "bc":
        save(owners[name], 1.0)
    assert take(order, owners, 2.0, 2) == ["a"]
    save(owners["a"], 2.0)
    assert take(order, owners, 3.0, 2) == []


def test_of_those_that_got_as_much_the_one_that_was_saved_first_comes_first() -> None:
    order, owners = SavingOrder(), served("a", "b", "c")
    for name, saved_s in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        save(owners[name], saved_s)
        send(order, owners[name])
    assert take(order, owners, 4.0, 3) == ["b", "c", "a"]


def test_what_goes_on_is_saved_again_in_the_next_round() -> None:
    order, owners = SavingOrder(), served("a")
    for now_s in (1.0, 2.0, 3.0):
        send(order, owners["a"])
        assert take(order, owners, now_s, 100) == ["a"]
        save(owners["a"], now_s)
    assert take(order, owners, 4.0, 100) == []


def test_what_came_while_it_was_saved_is_saved_the_next_time_though_nobody_says_so() -> None:
    order, owners = SavingOrder(), served("a")
    send(order, owners["a"], 2)
    assert take(order, owners, 1.0, 100, {"a"}) == []  # its save is under way
    owners["a"].session.sent_saved = 1
    assert take(order, owners, 2.0, 100) == ["a"]


def test_one_whose_home_hangs_takes_nobodys_place() -> None:
    order, owners = SavingOrder(), served("a", "b")
    send(order, owners["a"], 9)
    send(order, owners["b"])
    assert take(order, owners, 1.0, 1) == ["a"]
    send(order, owners["a"], 9)
    assert take(order, owners, 2.0, 1, {"a"}) == ["b"]


def test_one_that_lags_waits_until_what_was_saved_is_old() -> None:
    order, owners = SavingOrder(), served("a")
    owners["a"].subscriber.lagging[7] = 1
    save(owners["a"], 1.0)
    send(order, owners["a"])
    assert take(order, owners, 2.0, 100) == []
    assert take(order, owners, 1.0 + LAGGING_S, 100) == ["a"]


def test_one_that_got_nothing_is_saved_when_what_was_saved_is_stale() -> None:
    order, owners = SavingOrder(), served("a")
    save(owners["a"], 100.0)
    assert take(order, owners, 100.0, 100) == []
    assert take(order, owners, 100.0 + STALE_S - 1, 100) == []
    assert take(order, owners, 100.0 + STALE_S + STALE_LOOK_S, 100) == ["a"]


def test_one_that_ends_with_its_connection_is_never_saved() -> None:
    order, owners = SavingOrder(), served("a", expiry_s=0)
    send(order, owners["a"])
    assert take(order, owners, 2 * STALE_S, 100) == []


def test_one_that_left_is_not_saved_here() -> None:
    order, owners = SavingOrder(), served("a", "b")
    for owner in owners.values():
        send(order, owner)
    assert take(order, owners, 1.0, 1) == ["b"]
    save(owners["b"], 1.0)
    order.left("a")
    del owners["a"]
    assert take(order, owners, 2.0, 1) == []


def test_the_order_is_looked_at_again_when_what_was_chosen_is_saved() -> None:
    names = [f"{number:03d}" for number in range(ROUNDS_CHOSEN + 5)]
    order, owners = SavingOrder(), served(*names)
    for number, name in enumerate(names, 1):
        send(order, owners[name], number)
    taken = []
    for turn in range(len(names)):
        (name,) = take(order, owners, float(turn), 1)
        save(owners[name], float(turn))
        taken.append(name)
    assert taken == names[::-1]


steps = st.lists(st.tuples(st.sampled_from(["send", "lag", "live", "leave", "round"]), st.integers(0, 5)), max_size=80)


@settings(max_examples=200)
@given(steps, st.integers(1, 3))
def test_whatever_happens_all_are_saved_in_the_end(script: list[tuple[str, int]], most: int) -> None:
    names = [f"c{number}" for number in range(6)]
    order, owners, now_s = SavingOrder(), served(*names), 0.0

    def round_() -> None:
        taken = take(order, owners, now_s, most)
        assert len(taken) == len(set(taken)) <= most
        for name in taken:
            owner = owners[name]
            assert owner.session.sent > owner.session.sent_saved
            save(owner, now_s)

    for what, number in script:
        now_s += 0.1
        name = names[number]
        if what == "round":
            round_()
        elif name in owners and what == "send":
            send(order, owners[name])
        elif name in owners and what in ("lag", "live"):
            owners[name].subscriber.lagging = {1: 1} if what == "lag" else {}
        elif name in owners and what == "leave":
            order.left(name)
            del owners[name]
    for _ in range(2 * len(names) + ROUNDS_CHOSEN):
        now_s += LAGGING_S
        round_()
    assert all(owner.session.sent == owner.session.sent_saved for owner in owners.values())
