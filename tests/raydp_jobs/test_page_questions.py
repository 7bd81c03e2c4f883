"""Questions of the page: what Spark answers to them over HTTP, what no statement gets, and what answers look like."""

from __future__ import annotations

import datetime
import io
import json
import math
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import lexicast.sync
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.security.operator_token import operator_token
from lexicast.raydp_jobs.history.reading import Reader, topic_matcher
from lexicast.raydp_jobs.jobs import page_questions
from lexicast.raydp_jobs.jobs.page_questions import CELL_CHARACTERS_MAX, answer_lines, bounded, page_value

from ..support.up import lexicast_up

needs_spark = pytest.mark.skipif(find_spec("raydp") is None, reason="needs lexicast[spark]")

ACL = "user ada\ntopic readwrite work/#\ntopic nohistory work/shut/#\n"
WAIT_S = 300.0
COUNT = "SELECT topic, count(*) AS n FROM history GROUP BY topic ORDER BY topic"


def test_rules_leave_out_what_a_reader_may_not_read_of_the_past() -> None:
    wanted = topic_matcher(b"#", Reader("ada", "console", ACL).allowed())
    assert [wanted(topic) for topic in (b"work/a", b"work/shut/a", b"other")] == [True, False, False]
    assert topic_matcher(b"#")(b"other") is True


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (2**53, "9007199254740992"),
        (-(2**63), "-9223372036854775808"),
        (0.5, 0.5),
        (math.nan, "nan"),
        (b"text", "text"),
        (b"\xff\x00", "ff00"),
        (Decimal("1.50"), "1.50"),
        (datetime.date(2026, 11, 30), "2026-11-30"),
        ([1, b"a", None], '[1, "a", null]'),
        ("x" * 20_000, "x" * CELL_CHARACTERS_MAX + " ..."),
    ],
    ids=str,
)
def test_a_value_as_the_page_gets_it(value: Any, told: Any) -> None:
    assert page_value(value) == told


def test_an_answer_has_as_many_rows_as_there_is_room_for() -> None:
    rows = [["x" * 1_000]] * 1_000
    taken = bounded(rows)
    assert 500 < len(taken) < 525
    assert len(bounded(rows[:10])) == 10


def test_a_wrong_question_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_questions, "check_sql", lambda *_: None)
    question = {"statement": COUNT, "filter": "a/#/b", "since": "1h", "until": None, "where": None}
    answers = io.StringIO()
    answer_lines("127.0.0.1:1", io.StringIO(json.dumps(question) + "\n"), answers)
    told = json.loads(answers.getvalue())
    assert told["usage"] is True
    assert "#" in told["error"]


class Page:
    """A page's questions, of one visitor."""

    def __init__(self, address: str, authorization: str) -> None:
        self._address = address
        self._authorization = authorization

    def ask(self, statement: str, **more: Any) -> dict[str, Any]:
        """The answer, or {"error", "status"}."""
        body = json.dumps({"statement": statement, "since": "beginning", **more}).encode()
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._address.rstrip('/')}/api/v1/sql", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except HTTPError as error:
            return {**json.load(error), "status": error.code}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Page]]:
    """Those of the operators' token, and of ada, an operator with rules."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "acl").write_text(ACL)
    # of `lexicast user add`; the password is "lovelace"
    from lexicast.cluster.security.passwords import SHA512, hash_password

    (folder / "users").write_text(f"ada:{hash_password(b'lovelace', b'salt' * 3, SHA512).text()}\n")
    config = f"""
[security]
password_file = "{folder}/users"
acl_file = "{folder}/acl"

[http]
operators = ["ada"]
"""
    with lexicast_up(folder, "--mqtt-port", "0", "--page", str(free_port()), config=config) as run:
        data_dir = Path(run["data_dir"])
        with lexicast.sync.connect(data_dir=data_dir) as bus:
            topics = ("work/a", "work/shut/a", "other")
            bus.publish_many([(topics[at % 3], json.dumps({"n": at}).encode()) for at in range(300)])
        token = operator_token((data_dir / "cluster.key").read_bytes())
        basic = "Basic YWRhOmxvdmVsYWNl"
        yield Page(run["pages"][0], f"Bearer {token}"), Page(run["pages"][0], basic)


REFUSED = [
    ("SELECT reflect('java.lang.System', 'getenv')", "Java"),
    ("SELECT java_method('java.lang.Runtime', 'getRuntime') FROM history", "Java"),
    (
        "SELECT sum(n) OVER w FROM (SELECT 1 AS n) WINDOW w AS (PARTITION BY reflect('java.lang.System', 'getenv'))",
        "Java",
    ),
    ("SELECT * FROM (SELECT * FROM VALUES (reflect('java.lang.System', 'getenv')))", "Java"),
    ("SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv')", ""),
    ("SELECT TRANSFORM (topic) USING 'cat' AS (t) FROM history", "ScriptTransformation"),
    ("SELECT * FROM history WHERE topic IN (SELECT TRANSFORM (topic) USING 'cat' AS (t) FROM history)", "Script"),
    ("SELECT * FROM text.`/etc/passwd`", "text./etc/passwd"),
    ("SELECT * FROM history WHERE EXISTS (SELECT * FROM text.`/etc/passwd`)", "text./etc/passwd"),
    ("SELECT * FROM IDENTIFIER('text.`/etc/passwd`')", ""),
    ("WITH w AS (SELECT * FROM csv.`/etc/passwd`) SELECT * FROM w", "csv./etc/passwd"),
    ("SELECT * FROM secrets", "the tables are history"),
    ("CREATE TABLE x AS SELECT 1", "questions alone"),
    ("CREATE TEMPORARY VIEW x USING text OPTIONS (path '/etc/passwd')", "questions alone"),
    ("INSERT OVERWRITE DIRECTORY 'out' USING csv SELECT 1", "questions alone"),
    ("ADD JAR 'a.jar'", "questions alone"),
    ("SET spark.sql.runSQLOnFiles=true", "questions alone"),
    ("DROP VIEW history", "questions alone"),
    ("SHOW TABLES", "questions alone"),
    ("EXPLAIN SELECT 1", "questions alone"),
    ("SELEC 1", "SELEC"),
    ("SELECT nonsense FROM history", "nonsense"),
    ("SELECT raise_error('oh')", "oh"),
    (f"SELECT '{'x' * 20_000}'", "bytes at the most"),
]
ANSWERED = [
    "SELECT count(*) FROM history HAVING count(*) > 1",
    "WITH w AS (SELECT topic, time FROM history) SELECT topic, max(time) FROM w GROUP BY topic",
    "SELECT topic, rank() OVER (PARTITION BY topic ORDER BY time) FROM history LIMIT 3",
    "SELECT sum(offset) OVER w FROM history WINDOW w AS (PARTITION BY topic) LIMIT 3 OFFSET 1",
    "SELECT a.topic FROM history a JOIN history b ON a.topic = b.topic AND a.offset = b.offset LIMIT 3",
    "SELECT DISTINCT topic FROM history UNION ALL SELECT 'a' EXCEPT SELECT 'b' INTERSECT SELECT 'c'",
    "SELECT * FROM VALUES (1, 'a'), (2, 'b') AS v (n, name)",
    "SELECT explode(split(topic, '/')) AS level FROM history LIMIT 3",
    "SELECT topic, level FROM history LATERAL VIEW explode(split(topic, '/')) AS level LIMIT 3",
    "SELECT id FROM range(5)",
    "SELECT transform(array(1, 2), x -> x + 1)",
    "SELECT * FROM (SELECT topic, qos FROM history) PIVOT (count(*) FOR qos IN (0, 1))",
    "SELECT topic FROM history TABLESAMPLE (10 ROWS) WHERE topic IN (SELECT max(topic) FROM history)",
    "SELECT * FROM history h, LATERAL (SELECT h.offset + 1 AS next) LIMIT 3",
    "SELECT /*+ COALESCE(1) */ window(time, '10 minutes').start, count(*) FROM history GROUP BY 1",
    "SELECT CASE WHEN qos = 1 THEN 'one' END, cast(payload AS STRING) FROM history ORDER BY time DESC LIMIT 3",
    "FROM history SELECT topic GROUP BY ROLLUP (topic)",
]


@needs_spark
@pytest.mark.spark
@pytest.mark.timeout(900)
class TestInSpark:
    """One cluster, one Spark."""

    def test_a_question_is_answered(self, page: tuple[Page, Page]) -> None:
        operator, _ = page
        told = operator.ask(COUNT)
        assert told.get("rows") == [["other", 100], ["work/a", 100], ["work/shut/a", 100]], told
        told = operator.ask("SELECT n FROM history ORDER BY n", schema="json", limit=3, where="n >= 10")
        assert (told["columns"], told["rows"], told["more"]) == (["n"], [[10], [11], [12]], True)

    def test_an_operators_rules_hold(self, page: tuple[Page, Page]) -> None:
        _, ada = page
        assert ada.ask(COUNT)["rows"] == [["work/a", 100]]
        assert ada.ask(COUNT, filter="other")["status"] == 403

    @pytest.mark.parametrize(("statement", "words"), REFUSED, ids=[each[:60] for each, _ in REFUSED])
    def test_nothing_but_questions(self, page: tuple[Page, Page], statement: str, words: str) -> None:
        told = page[0].ask(statement)
        assert words in told["error"]

    @pytest.mark.parametrize("statement", ANSWERED)
    def test_questions_of_every_kind(self, page: tuple[Page, Page], statement: str) -> None:
        told = page[0].ask(statement)
        assert "error" not in told, told

    def test_after_all_that_the_first_is_answered_still(self, page: tuple[Page, Page]) -> None:
        assert len(page[0].ask(COUNT)["rows"]) == 3
