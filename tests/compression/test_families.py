"""Topic families: rules, learning within bounds, and the map of announced dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import TopicError
from lexicast.cluster.topics.names import check_filter, matches
from lexicast.compression.codecs import FIELDS, ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.families import LEVELS_MAX, Families, FamilyMap, crosses, looks_like_id
from lexicast.compression.training import train

LEVEL = st.one_of(
    st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=6),
    st.integers(0, 10**9).map(str),
    st.uuids().map(str),
)
TOPIC = st.lists(LEVEL, min_size=1, max_size=6).map(lambda levels: "/".join(levels).encode()).filter(bool)


def announced(family: bytes, content: bytes = b"content", created_us: int = 1, expires_us: int = 100) -> Dictionary:
    return Dictionary(family, ZSTD, content, created_us, expires_us)


@pytest.mark.parametrize(
    "level",
    ["7", "-3", "1.5", "2024-01-31", "10.0.0.1", "deadbeef", "DEADBEEF01", "0x1234abcd", "sensor12", "AB1234", "x" * 65,
     "550e8400-e29b-41d4-a716-446655440000", "{550E8400-E29B-41D4-A716-446655440000}", "device_7", "N14228"],
)  # fmt: skip
def test_ids(level: str) -> None:
    assert looks_like_id(level.encode())


@pytest.mark.parametrize(
    "level", ["", "telemetry", "JFK", "co2", "pm25", "v1", "faced", "temperature-out", "a.b", "DeadBeef"]
)
def test_names(level: str) -> None:
    assert not looks_like_id(level.encode())


def test_levels_that_are_ids_become_plus() -> None:
    families = Families()
    assert families.family_of(b"devices/123/telemetry") == b"devices/+/telemetry"
    assert families.family_of(b"a/550e8400-e29b-41d4-a716-446655440000/v1/co2") == b"a/+/v1/co2"


def test_explicit_filters_come_first_in_their_order() -> None:
    families = Families([b"a/+/c", b"a/#"], opted_out=[b"a/secret/#"])
    assert families.family_of(b"a/b/c") == b"a/+/c"
    assert families.family_of(b"a/b/d") == b"a/#"
    assert families.family_of(b"a/secret/c") is None
    assert families.family_of(b"b/b/d") == b"b/b/d"


def test_no_family_for_dollar_topics_and_the_alias_topic() -> None:
    families = Families([b"#"])
    assert families.family_of(b"$SYS/load") is None
    assert families.family_of(b"$sdc/a") is None
    assert Families().family_of(b"alias") is None
    assert Families().family_of(b"alias/x") == b"alias/x"


def test_bad_filters_are_refused() -> None:
    with pytest.raises(TopicError):
        Families([b"a/#/b"])
    with pytest.raises(TopicError):
        Families(opted_out=[b"a+"])


def test_a_level_with_many_values_is_learned_to_vary() -> None:
    families = Families(values_max=20)
    names = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}".encode() for n in range(21)]
    assert [families.family_of(b"flights/" + name) for name in names[:20]] == [b"flights/" + n for n in names[:20]]
    assert families.family_of(b"flights/" + names[20]) == b"flights/+"
    assert families.family_of(b"flights/" + names[0]) == b"flights/+"
    assert families.family_of(b"weather/" + names[0]) == b"weather/" + names[0]


def test_values_are_counted_below_their_own_parent() -> None:
    families = Families(values_max=2)
    for room in (b"hall", b"kitchen"):
        for what in (b"light", b"door"):
            assert families.family_of(b"house/" + room + b"/" + what) == b"house/" + room + b"/" + what
    assert families.family_of(b"house/attic/light") == b"house/+/light"
    assert families.family_of(b"house/hall/window") == b"house/+/window"


@given(topics=st.lists(TOPIC, max_size=60))
def test_every_family_is_a_filter_that_matches_its_topic_and_is_deterministic(topics: list[bytes]) -> None:
    one, two = Families(values_max=3, nodes_max=30), Families(values_max=3, nodes_max=30)
    for topic in topics:
        family = one.family_of(topic)
        assert family == two.family_of(topic)
        if family is None:
            assert topic.startswith(b"$") or topic == b"alias"
            continue
        check_filter(family)
        assert matches(family, topic)


@given(topics=st.lists(TOPIC, max_size=80), values_max=st.integers(1, 4), nodes_max=st.integers(1, 20))
def test_the_tree_of_values_keeps_its_books(topics: list[bytes], values_max: int, nodes_max: int) -> None:
    families = Families(values_max=values_max, nodes_max=nodes_max)
    for topic in topics:
        families.family_of(topic)
        assert families._nodes_left >= 0
        assert families._root.size() - 1 == nodes_max - families._nodes_left


def test_deep_topics_end_in_a_hash() -> None:
    topic = b"/".join([b"x"] * (LEVELS_MAX + 5))
    family = Families().family_of(topic)
    assert family is not None
    assert family.endswith(b"/#")
    assert matches(family, topic)


def test_the_newest_dictionary_of_the_most_specific_family_is_found() -> None:
    families = FamilyMap()
    old, new = announced(b"a/+"), announced(b"a/+", b"newer", created_us=2)
    exact, wide = announced(b"a/b", expires_us=50), announced(b"a/#", b"wide", expires_us=300)
    assert families.dictionary_for(b"a/c", 0) is None
    for one in (new, exact, wide):
        assert families.add(one)
    assert not families.add(old)
    assert families.dictionary_for(b"a/c", 0) == new
    assert families.dictionary_for(b"a/b", 0) == exact
    assert families.dictionary_for(b"a/b", 50) == new  # expired: the next family
    assert families.dictionary_for(b"a/b", 100) == wide
    assert families.dictionary_for(b"a/b", 300) is None
    assert families.families_of(b"a/b") == (b"a/b", b"a/+", b"a/#")
    assert families.family_of(b"z") is None


def test_the_newest_dictionary_of_bytes_is_kept_beside_a_field_model() -> None:
    families = FamilyMap()
    model = train([b"n=%d" % n for n in range(60)], 8_192, FIELDS, family=b"a", created_us=5)
    bytes_3, bytes_4, bytes_6 = (announced(b"a", b"%d" % at, created_us=at) for at in (3, 4, 6))
    assert families.newest_of_bytes(b"a") is None
    families.add(bytes_3)
    assert families.newest_of_bytes(b"a") == bytes_3
    families.add(model)
    assert (families.newest(b"a"), families.newest_of_bytes(b"a")) == (model, bytes_3)
    assert not families.add(bytes_4), "older than the model, and newer than what clients without fields have"
    assert families.newest_of_bytes(b"a") == bytes_4
    assert not families.add(bytes_3)
    assert families.newest_of_bytes(b"a") == bytes_4
    families.add(bytes_6)
    assert families.newest(b"a") == families.newest_of_bytes(b"a") == bytes_6


def test_a_prolonged_dictionary_replaces_itself() -> None:
    families = FamilyMap()
    families.add(announced(b"a", expires_us=50))
    assert families.add(announced(b"a", expires_us=90))
    found = families.dictionary_for(b"a", 60)
    assert found is not None
    assert found.expires_us == 90


def test_the_map_is_bounded() -> None:
    families = FamilyMap(families_max=3, cache_max=4)
    for n in range(10):
        families.add(announced(b"f/%d" % n))
        families.dictionary_for(b"f/%d" % n, 0)
        families.dictionary_for(b"g/%d" % n, 0)
    assert [d.family for d in families.dictionaries()] == [b"f/7", b"f/8", b"f/9"]
    assert families.dictionary_for(b"f/0", 0) is None
    assert len(families._cache) <= 4


class TestBoundary:
    @given(st.lists(TOPIC, max_size=60), st.integers(0, 4))
    def test_a_family_has_the_first_levels_of_its_topics(self, topics: list[bytes], levels: int) -> None:
        families = Families(boundary_levels=levels, values_max=2, nodes_max=20)
        for topic in topics:
            family = families.family_of(topic)
            if family is not None:
                assert family.split(b"/")[:levels] == topic.split(b"/")[:levels]
                assert not crosses(family, levels)
                assert matches(family, topic)

    def test_many_tenants_stay_apart_whatever_they_are_called(self) -> None:
        families = Families(boundary_levels=1)
        for number in range(1_000):
            for tenant in (b"tenant-%d" % number, b"%d" % number):
                assert families.family_of(tenant + b"/devices/%d/state" % number) == tenant + b"/devices/+/state"

    def test_without_it_the_21st_tenant_merges_all(self) -> None:
        families = Families()
        found = [families.family_of(b"tenant%s/state" % (b"x" * number)) for number in range(30)]
        assert found[-1] == b"+/state"

    def test_where_there_is_no_room_a_tenant_has_no_family(self) -> None:
        families = Families(boundary_levels=1, nodes_max=3)
        assert families.family_of(b"a/x") == b"a/x"
        assert families.family_of(b"b/x") == b"b/+"
        assert families.family_of(b"c/x") is None

    def test_families_given_by_hand_do_not_cross_it(self) -> None:
        families = Families([b"+/state", b"acme/+"], boundary_levels=1)
        assert families.family_of(b"acme/state") == b"acme/+"
        assert families.family_of(b"globex/state") == b"globex/state"

    @pytest.mark.parametrize(
        ("family", "levels", "over"),
        [
            (b"+/x", 1, True),
            (b"a/+", 1, False),
            (b"a/+", 2, True),
            (b"#", 1, True),
            (b"a/#", 1, False),
            (b"+/x", 0, False),
        ],
    )
    def test_what_crosses(self, family: bytes, levels: int, over: bool) -> None:
        assert crosses(family, levels) is over
