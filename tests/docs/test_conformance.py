"""Every statement of MQTT that binds a server has a test, or a reason; the page is what table and tests say."""

from __future__ import annotations

import runpy

from ..support.statements import ROOT, Statement, claims, proved, statements

TABLE = statements()
FOUND = claims()


def test_tests_name_statements_that_there_are() -> None:
    known = {(each.version, each.id) for each in TABLE}
    unknown = [claim for claim in FOUND if (claim.version, claim.id) not in known]
    assert not unknown


def test_every_statement_that_binds_a_server_has_a_test_or_a_reason() -> None:
    tests = proved(TABLE, FOUND)
    without = [each for each in TABLE if each.binds != "client" and not each.why and not tests[each.version, each.id]]
    assert not without, "\n".join(f"{each.version} {each.id}: {each.says}" for each in without)


def test_a_reason_stands_only_where_there_is_no_test() -> None:
    tests = proved(TABLE, FOUND)
    assert not [each for each in TABLE if each.why and tests[each.version, each.id]]


def test_what_311_says_too_is_in_the_table() -> None:
    known = {each.id for each in TABLE if each.version == "mqtt5"}
    assert not [each for each in TABLE if each.same and each.same not in known]
    assert {each.binds for each in TABLE} == {"server", "client", "both"}


def test_a_statement_without_a_test_is_found() -> None:
    added = Statement("mqtt5", "MQTT-9.9.9-9", "server", "nothing")
    assert proved([*TABLE, added], FOUND)["mqtt5", "MQTT-9.9.9-9"] == []


def test_the_page_is_what_table_and_tests_say() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "conformance_page.py"))
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert text == script["page"](), "write it anew: python scripts/conformance_page.py"
