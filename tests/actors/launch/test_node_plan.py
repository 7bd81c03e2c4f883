"""What runs on which node, and what nodes are called."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.launch.node_names import LivingNode, node_names
from lexicast.actors.launch.node_plan import first, founding, more, settled
from lexicast.actors.launch.node_stores import homes_of

NODES = ("a", "b", "c")
HOMES = st.dictionaries(st.integers(0, 12).map(lambda i: f"coordinator-{i}"), st.sampled_from(NODES))


def living(*ids: str, label: str = "") -> list[LivingNode]:
    """Nodes of one machine; those behind `label` bear it."""
    return [LivingNode(each, "127.0.0.1", "machine", {"lexicast-node": label} if label else {}) for each in ids]


def test_a_new_cluster_has_its_coordinators_in_the_order_of_its_nodes() -> None:
    assert list(founding(NODES[:2], 2).items()) == [
        ("coordinator-0", "a"),
        ("coordinator-1", "a"),
        ("coordinator-2", "b"),
        ("coordinator-3", "b"),
    ]


@given(HOMES, st.lists(st.sampled_from(NODES), min_size=1, unique=True), st.integers(1, 4))
def test_coordinators_stay_where_their_stores_are_whatever_nodes_there_are(
    homes: dict[str, str], nodes: list[str], each: int
) -> None:
    found = settled(homes, homes, nodes, each)
    if len(nodes) > 1 or len(set(homes.values())) > 1:
        assert found == homes
    else:  # the one machine of a cluster may have got another name
        assert found == dict.fromkeys(homes, nodes[0])


@given(HOMES, st.lists(st.sampled_from(NODES), unique=True), st.integers(1, 4))
def test_each_node_gets_what_it_lacks_under_names_that_nobody_has(
    homes: dict[str, str], nodes: list[str], each: int
) -> None:
    added = more(homes, nodes, each, "coordinator")
    assert not set(added) & set(homes)
    counted = Counter({**homes, **added}.values())
    for node in NODES:
        before = Counter(homes.values())[node]
        assert counted[node] == (max(before, each) if node in nodes else before)


def test_names_that_are_taken_elsewhere_are_no_new_ones() -> None:
    assert more({}, ["c"], 1, "coordinator", taken=["coordinator-0", "coordinator-1"]) == {"coordinator-2": "c"}


def test_where_homes_are_not_known_coordinators_are_where_they_always_were() -> None:
    names = [f"coordinator-{i}" for i in range(12)]  # as text, 10 would stand before 2
    assert Counter(settled(names, {}, NODES, 4).values()) == {"a": 4, "b": 4, "c": 4}
    assert settled(names, {}, NODES, 4)["coordinator-2"] == "a"
    assert settled(names, {}, NODES, 4)["coordinator-10"] == "c"


def test_of_what_was_on_a_node_the_first_are_started_again() -> None:
    homes = {"broker-10": "a", "broker-2": "a", "broker-1": "b"}
    assert first(homes, ["a"], 1) == {"broker-2": "a"}
    assert first(homes, ["a", "b"], 5) == homes


def test_nodes_of_one_machine_are_told_apart_and_keep_their_names() -> None:
    names = node_names(living("x", "y", "z"), {})
    assert names == {"x": "machine", "y": "machine-2", "z": "machine-3"}
    # One goes, another one comes: it is taken for that one.
    assert node_names(living("x", "z", "w"), names) == {"x": "machine", "z": "machine-3", "w": "machine-2"}


def test_who_may_be_one_come_back_waits_for_that_to_show() -> None:
    names = node_names(living("x"), {})
    assert node_names(living("x", "y"), names, patient=True) == {"x": "machine"}
    assert node_names(living("y"), names, patient=True) == {"y": "machine"}
    assert node_names(living("x", "y"), names) == {"x": "machine", "y": "machine-2"}


def test_a_label_says_who_a_node_is_and_is_no_others() -> None:
    assert node_names(living("x", label="rack-1"), {}) == {"x": "rack-1"}
    assert node_names(living("x", "y", label="rack-1"), {}) == {"x": "rack-1"}


def test_a_location_is_a_label() -> None:
    assert LivingNode("x", "h", "m", {"ray.io/zone": "z"}).location() == "z"
    assert LivingNode("x", "h", "m", {"ray.io/zone": "z", "lexicast-location": "rack"}).location() == "rack"
    assert LivingNode("x", "h", "m").location() == ""


def test_a_store_is_at_home_where_it_lies_unless_nodes_share_a_folder() -> None:
    assert homes_of({"a": ["coordinator-0", "coordinator-4"], "b": ["coordinator-2"]}) == {
        "coordinator-0": "a",
        "coordinator-4": "a",
        "coordinator-2": "b",
    }
    assert homes_of({"a": ["coordinator-0"], "b": ["coordinator-0"]}) == {}
