"""Rules of acl files: what a line may be, and who may do what, beside an evaluator that looks at them one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.acl_file import DENY, NOHISTORY, READ, WRITE, AclRule, parse_acl
from lexicast.cluster.security.rules import HISTORY, AccessRules
from lexicast.cluster.topics.names import matches

# -- lines


def test_a_file_as_people_write_it() -> None:
    text = "# ours\r\ntopic read public/#\n\nuser  ada lovelace \ntopic plant/+/state\n  topic deny  a b c \n"
    text += "pattern write d/%u/#\n"
    assert [(rule.user, rule.is_pattern, rule.says, rule.topic_filter, rule.line) for rule in parse_acl(text)] == [
        ("", False, READ, b"public/#", 2),
        ("ada lovelace", False, READ | WRITE, b"plant/+/state", 5),
        ("ada lovelace", False, DENY, b"a b c", 6),
        ("", True, WRITE, b"d/%u/#", 7),
    ]


def test_the_file_that_the_docs_show_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/security.md").read_text(encoding="utf-8")
    shown = page.partition("## Rules")[2].partition("```text\n")[2].partition("```")[0]
    found = {user: rights(shown, user, b"plant/meter") for user in ("", "ada", "bob")}
    assert found == {"": "", "ada": "r", "bob": ""}
    assert rights(shown, "ada", b"plant/1/state") == "rwh"
    assert rights(shown, "ada", b"plant/9/state") == ""
    assert rights(shown, "bob", b"devices/bob/x") == "w"


def test_a_lone_word_is_the_topic_whatever_it_is() -> None:
    assert [(rule.says, rule.topic_filter) for rule in parse_acl("topic read\ntopic deny\npattern nohistory")] == [
        (READ | WRITE, b"read"),
        (READ | WRITE, b"deny"),
        (READ | WRITE, b"nohistory"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("topic", "names no topic"),
        ("pattern   ", "names no topic"),
        ("user", "lacks a name"),
        ("topics read a", "'topics' begins no rule"),
        ("topic\tread a", "begins no rule"),
        ("Topic read a", "begins no rule"),
        ("topic raed a", "'raed' is none of read, write, readwrite, deny, nohistory"),
        ("topic a b", "'a' is none of"),
        ("topic read a/#/b", "'#' stands for all further levels"),
        ("topic read a+", r"'\+' must be alone"),
        ("topic write " + "/" * 201, "more than 200 levels"),
        ("topic read a\udce9", "UTF-8"),
        ("\ufefftopic read a", "begins no rule"),
        ("topic read a\0b", "null character"),
    ],
)
def test_what_is_no_rule_is_an_error_that_names_its_line(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"line 3: .*{why}"):
        parse_acl(f"# first\ntopic read a\n{line}\ntopic read b")


@given(st.text(alphabet="topicuserpattern readwdeny%#+/\n\t ", max_size=80))
def test_any_text_is_rules_or_an_error(text: str) -> None:
    try:
        rules = parse_acl(text)
    except ConfigError:
        return
    for rule in rules:
        (again,) = parse_acl(rule.text)
        assert again[1:4] == rule[1:4]


# -- answers


def rights(text: str, user: str, topic: bytes, client_id: str = "c1") -> str:
    """As "rwh"."""
    found = AccessRules.of_text(text).rights(user, client_id, topic)
    return "".join([letter for letter, bit in (("r", READ), ("w", WRITE), ("h", HISTORY)) if found & bit])


def test_an_empty_file_allows_nothing() -> None:
    assert rights("", "ada", b"a") == rights("# nothing\n", "", b"a") == ""


def test_rules_before_the_first_user_are_for_those_who_have_not_logged_in() -> None:
    text = "topic a\nuser ada\ntopic b"
    assert [rights(text, user, topic) for user in ("", "ada", "bob") for topic in (b"a", b"b")] == [
        "rwh", "", "", "rwh", "", "",
    ]  # fmt: skip


def test_a_denial_counts_wherever_it_stands() -> None:
    text = "user ada\ntopic a/#\ntopic deny a/b/#"
    assert (rights(text, "ada", b"a/c"), rights(text, "ada", b"a/b"), rights(text, "ada", b"a/b/c")) == ("rwh", "", "")


def test_own_rules_come_before_patterns() -> None:
    text = "user ada\ntopic read a/#\npattern deny a/#\npattern write %u/#"
    assert rights(text, "ada", b"a/b") == "rh"  # her own rule lets her read, whatever a pattern denies
    assert rights(text, "bob", b"a/b") == ""
    assert rights(text, "bob", b"bob/b") == "w"
    assert rights("user ada\ntopic deny ada/x\npattern %u/#", "ada", b"ada/x") == ""


def test_patterns_are_filled_with_names_and_take_what_stands_around_them() -> None:
    text = "pattern read d/%u-%c/+\npattern write %c"
    assert rights(text, "ada", b"d/ada-c1/x") == "rh"
    assert rights(text, "ada", b"c1") == rights(text, "", b"c1") == "w"
    assert rights(text, "", b"d/-c1/x") == ""
    assert rights("pattern %u%%c", "%c", b"%c%c1") == "rwh"  # filled once, from left to right


@pytest.mark.parametrize(("user", "client_id"), [("+", "c1"), ("#", "c1"), ("ada", "+"), ("ada", "a#")])
def test_names_that_are_wildcards_get_nothing_of_patterns(user: str, client_id: str) -> None:
    """CVE-2017-7650 (Mosquitto)."""
    text = f"user {user}\ntopic read own\npattern d/%u/#\npattern all"
    assert [rights(text, user, topic, client_id) for topic in (b"own", b"d/x/y", b"all")] == ["rh", "", ""]


def test_a_name_with_a_slash_is_let_into_nobody_elses_topics() -> None:
    text = "pattern d/%c/#\npattern u/%u/#\npattern deny d/+/key\npattern all\npattern nohistory all"
    assert rights(text, "ada", b"d/bob/x", "bob") == "rwh"
    assert rights(text, "ada", b"d/bob/x/y", "bob/x") == ""
    assert rights(text, "ada/x", b"u/ada/x/y") == ""
    assert rights(text, "ada", b"all", "bob/x") == "rw"
    assert rights("pattern deny %c\npattern #", "ada", b"bob/x", "bob/x") == ""  # what denies goes on to


def test_wildcards_do_not_reach_dollar_topics() -> None:
    text = "user ada\ntopic #\ntopic +/x\nuser bob\ntopic read $SYS/#"
    assert rights(text, "ada", b"$SYS/x") == "" == rights(text, "bob", b"a")
    assert rights(text, "bob", b"$SYS/x") == "rh"
    assert rights("pattern %u/x", "$SYS", b"$SYS/x") == "rwh"


def test_the_past_is_a_right_of_its_own() -> None:
    text = "user ada\ntopic read #\ntopic nohistory secret/#\npattern nohistory %u/now"
    assert [rights(text, "ada", topic) for topic in (b"a", b"secret", b"secret/x", b"ada/now")] == ["rh", "r", "r", "r"]
    assert rights("user ada\ntopic nohistory a", "ada", b"a") == ""


# -- beside an evaluator that looks at one rule after the other

LEVELS = st.sampled_from(["a", "b", "$x", "", "ada", "c1", "a-ada"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
WILD = st.sampled_from(["a", "b", "$x", "", "+", "%u", "%c", "a-%u", "%u%c"])


@st.composite
def filters(draw: st.DrawFn) -> str:
    """Of rules."""
    levels = draw(st.lists(WILD, min_size=1, max_size=4))
    if draw(st.booleans()):
        levels[-1] = "#"
    return "/".join(levels) or "a"


@st.composite
def files(draw: st.DrawFn) -> str:
    """An acl file."""
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 3)) == 0:
            lines.append(f"user {draw(st.sampled_from(['ada', 'bob', '+']))}")
        kind = draw(st.sampled_from(["topic", "topic", "pattern"]))
        word = draw(st.sampled_from(["read ", "write ", "readwrite ", "", "deny ", "nohistory "]))
        lines.append(f"{kind} {word}{draw(filters())}")
    return "\n".join(lines)


USERS = st.sampled_from(["", "ada", "bob", "+", "a/b"])
CLIENTS = st.sampled_from(["c1", "a", "", "x#", "a/b"])


def naive(rules: list[AclRule], user: str, client_id: str, topic: bytes) -> int:
    """Rule by rule."""
    own = [rule for rule in rules if not rule.is_pattern and rule.user == user]
    patterns = list[tuple[bytes, int]]()
    for rule in rules:
        text = rule.topic_filter.decode()
        if not rule.is_pattern or ("%u" in text and not user):
            continue
        says = rule.says
        if ("%c" in text and "/" in client_id) or ("%u" in text and "/" in user):
            says &= ~(READ | WRITE)
        filled, at = "", 0
        while at < len(text):
            name = {"%u": user, "%c": client_id}.get(text[at : at + 2])
            filled, at = (filled + text[at], at + 1) if name is None else (filled + name, at + 2)
        patterns.append((filled.encode(), says))
    granted = 0
    for action in (READ, WRITE):
        if _allowed([(rule.topic_filter, rule.says) for rule in own], action, topic):
            granted |= action
        elif any([rule.says == DENY and matches(rule.topic_filter, topic) for rule in own]):
            continue
        elif not set(user + client_id) & set("+#") and _allowed(patterns, action, topic):
            granted |= action
    every = [*[(rule.topic_filter, rule.says) for rule in own], *patterns]
    if granted & READ and not any([says == NOHISTORY and name and matches(name, topic) for name, says in every]):
        granted |= HISTORY
    return granted


def _allowed(rules: list[tuple[bytes, int]], action: int, topic: bytes) -> bool:
    if any([says == DENY and name and matches(name, topic) for name, says in rules]):
        return False
    return any([says & action and name and matches(name, topic) for name, says in rules])


@given(files(), USERS, CLIENTS, st.lists(TOPICS, min_size=1, max_size=12))
def test_answers_are_those_of_looking_at_one_rule_after_the_other(
    text: str, user: str, client_id: str, topics: list[str]
) -> None:
    rules = parse_acl(text)
    tree = AccessRules(rules)
    dangerous = not {*user, *client_id}.isdisjoint("+#")  # filled in by the naive way, such names are wildcards
    for topic in topics:
        found, expected = tree.rights(user, client_id, topic.encode()), naive(rules, user, client_id, topic.encode())
        assert found & (READ | WRITE) == expected & (READ | WRITE)
        assert dangerous or found == expected


EVERY_TOPIC = [
    "/".join(levels)
    for levels in [
        *[(a,) for a in ("a", "b", "$x", "ada", "c1")],
        *[(a, b) for a in ("a", "b", "$x", "", "ada") for b in ("a", "b", "", "$x", "c1")],
        *[(a, b, c) for a in ("a", "$x", "") for b in ("a", "b", "ada") for c in ("a", "b", "c1")],
    ]
]


@given(files(), USERS, CLIENTS, filters().filter(lambda name: "%" not in name))
def test_what_is_said_of_filters_is_true_of_their_topics(text: str, user: str, client_id: str, name: str) -> None:
    rules, topic_filter = AccessRules.of_text(text), name.encode()
    of_it = [topic.encode() for topic in EVERY_TOPIC if matches(topic_filter, topic.encode())]
    for action in (READ, HISTORY):
        if any([rules.may(user, client_id, action, topic) for topic in of_it]):
            assert rules.meets(user, client_id, action, topic_filter)
    for action in (READ, WRITE):
        if rules.covers(user, client_id, action, topic_filter):
            assert all([rules.may(user, client_id, action, topic) for topic in of_it])


@pytest.mark.parametrize(
    ("text", "met", "covered"),
    [
        (
            "topic read a/#",
            ["#", "a/#", "+/b", "a", "a/b", "a/+", "a/b/+", "a/b/#", "+"],
            ["a/#", "a", "a/b", "a/+", "a/b/+", "a/b/#"],
        ),
        ("topic read a/+\ntopic deny a/x", ["#", "a/#", "+/b", "a/b", "a/+", "a/b/#"], ["a/b"]),
        ("topic read #\ntopic deny #", [], []),
        ("topic read $x/#", ["$x/#", "$x/a", "$x/+"], ["$x/#", "$x/a", "$x/+"]),
        ("topic write #", [], []),
    ],
)
def test_filters_that_meet_and_are_covered(text: str, met: list[str], covered: list[str]) -> None:
    rules = AccessRules.of_text(text)
    asked = ["#", "a/#", "+/b", "a", "a/b", "a/+", "a/b/+", "a/b/#", "+", "b/#", "$x/#", "$x/a", "$x/+"]
    assert [name for name in asked if rules.meets("", "c", READ, name.encode())] == [n for n in asked if n in met]
    assert [n for n in asked if rules.covers("", "c", READ, n.encode())] == [n for n in asked if n in covered]
