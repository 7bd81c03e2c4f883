"""Who gets what of a console: users, operators, nobody; by which way; and what pages of other sites cannot do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import aiohttp
import pytest

from lexicast.actors.broker.security.rights import Rights
from lexicast.actors.console import answers, family_requests
from lexicast.actors.console.answers import VISITOR
from lexicast.actors.console.family_requests import FamilyRequests
from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.operator_token import operator_token
from lexicast.cluster.security.passwords import SHA512, hash_password

from ...support.console import Asking, asking, console
from ...support.harness import Cluster

ACL = """
user ada
topic readwrite work/#
topic nohistory work/shut/#
user eve
topic read work/open/#
"""
USERS = {"ada": b"lovelace", "eve": b"drops"}
ADA = {"Authorization": aiohttp.encode_basic_auth("ada", "lovelace")}
EVE = {"Authorization": aiohttp.encode_basic_auth("eve", "drops")}


def passwords(*users: str) -> bytes:
    """A password file of these users, or of all."""
    rows = [(user, hash_password(USERS[user], b"salt" * 3, SHA512).text()) for user in users or USERS]
    return "".join([f"{user}:{row}\n" for user, row in rows]).encode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of [security]."""
    folder = tmp_path_factory.mktemp("security")
    (folder / "passwords").write_bytes(passwords())
    (folder / "acl").write_text(ACL)
    return {"security__password_file": str(folder / "passwords"), "security__acl_file": str(folder / "acl")}


@pytest.fixture
async def secured(tmp_path: Path, files: dict[str, str]) -> AsyncIterator[tuple[Cluster, Asking]]:
    config = Config().replaced(**files)
    async with Cluster(tmp_path, config=config) as cluster:
        await cluster.coordination.give_security({"passwords": passwords(), "rules": ACL.encode()}, True)
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, http__operators=("ada",)) as server, asking(server) as someone:
            yield cluster, someone


async def test_with_users_nobody_in_particular_sees_nothing(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    for path in ("/api/v1/me", "/api/v1/status", "/metrics", "/api/v1/topics", "/api/v1/history?filter=%23"):
        assert "log in" in (await ask.get(path, status=401))["error"]
    await ask.post("/api/v1/publish", {"topic": "work/a", "payload": "x"}, status=401)
    assert "reasons" not in await ask.get("/health/ready")
    assert (await ask.text("/")).startswith("<!doctype html>")


@pytest.mark.cve("CVE-2024-51988")
async def test_operators_see_the_cluster_and_others_their_topics(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    assert (await ask.get("/api/v1/me", headers=ADA))["operator"] is True
    assert (await ask.get("/api/v1/status", headers=ADA))["cluster"]["groups"] == 4
    assert "reasons" in await ask.get("/health/ready", headers=ADA)
    assert (await ask.get("/api/v1/me", headers=EVE)) == {
        "user": "eve",
        "operator": False,
        "restricted": True,
        "cookie": False,
    }
    for path in ("/metrics", "/api/v1/status", "/api/v1/sessions", "/api/v1/families", "/api/v1/events"):
        assert "operators" in (await ask.get(path, status=403, headers=EVE))["error"]
    await ask.post("/api/v1/sessions/disconnect?id=x", status=403, headers=EVE)


async def test_rules_hold_for_operators_too(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    for topic, status in (("work/open/1", 200), ("work/shut/1", 200), ("other", 403)):
        await ask.post("/api/v1/publish", {"topic": topic, "payload": "x"}, status=status, headers=ADA)
    await ask.post("/api/v1/publish", {"topic": "work/open/1", "payload": "x"}, status=403, headers=EVE)
    below = await ask.get("/api/v1/topics?under=work/", headers=EVE)
    assert [row["name"] for row in below["rows"]] == ["work/open/"]
    past = await ask.get("/api/v1/history?filter=%23&since=beginning", headers=ADA)
    assert [row["topic"] for row in past["rows"]] == ["work/open/1"]


async def test_no_page_names_what_rules_keep_from_a_visitor(secured: tuple[Cluster, Asking]) -> None:
    cluster, ask = secured
    bearer = {"Authorization": f"Bearer {operator_token((await cluster.coordination.cluster()).key)}"}
    for topic in ("work/a", "work/open/1", "work/secret/1", "work/z", "other/1", "other/2"):
        await ask.post("/api/v1/publish", {"topic": topic, "payload": "x"}, headers=bearer)
    rows, places, after = list[str](), list[str](), ""
    while after is not None:
        parameters = {"under": "work/", "limit": "1", "after": after}
        page = await ask.get("/api/v1/topics", params=parameters, headers=EVE)
        rows, after = rows + [row["name"] for row in page["rows"]], page["next"]
        places.append(after or "")
    assert rows == ["work/open/"]
    assert len(places) == 4
    assert "work" not in "".join(places)
    hidden = await ask.get("/api/v1/topics?under=other/&limit=1", headers=EVE)
    assert (hidden["rows"], hidden["next"]) == ([], None)
    said = await ask.get("/api/v1/topics?under=work/&after=work/open", status=400, headers=EVE)
    assert "next" in said["error"]


async def test_a_stream_ends_with_who_logs_out(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    await ask.post("/api/v1/login", {"user": "eve", "password": "drops"})
    assert (await ask.get("/api/v1/me"))["cookie"] is True
    async with ask.session.get(ask.base + "/api/v1/stream?filter=work/open/%23") as stream:
        assert stream.headers["X-Content-Type-Options"] == "nosniff"
        await stream.content.readuntil(b"it begins here\n\n")
        await ask.post("/api/v1/logout")
        await ask.post("/api/v1/publish", {"topic": "work/open/1", "payload": "x"}, headers=ADA)
        assert await asyncio.wait_for(stream.content.read(), 20) == b""


async def test_the_example_of_a_family_is_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may have a dictionary need not be let see what was published before."""

    class Told:
        def dictionaries(self) -> list[Any]:
            return [SimpleNamespace(family=b"work")]

        async def history(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            yield SimpleNamespace(topic="work")

    class Asked(dict[Any, Any]):
        query: Final = {"name": "work"}

    monkeypatch.setattr(family_requests, "_told", lambda _, example: {"has_example": example is not None})
    rights = Rights(has_rules=True)
    request: Any = Asked({VISITOR: SimpleNamespace(rights=rights.client("eve", "console"))})
    for rules, shown in (("", True), ("topic nohistory work\n", False)):
        rights.update("user eve\ntopic read work\n" + rules, 1)
        answer = await FamilyRequests(cast(Any, Told())).family(request)
        assert json.loads(cast(bytes, answer.body)) == {"has_example": shown}


async def test_the_operators_token_lets_its_holder_in(secured: tuple[Cluster, Asking]) -> None:
    cluster, ask = secured
    token = operator_token((await cluster.coordination.cluster()).key)
    bearer = {"Authorization": f"Bearer {token}"}
    assert "lexicast_ready 1.0" in await ask.text("/metrics", headers=bearer)
    await ask.post("/api/v1/publish", {"topic": "other", "payload": "x"}, headers=bearer)
    wrong = {"Authorization": f"Bearer {token[:-1]}x"}
    await ask.get("/metrics", status=401, headers=wrong)


@pytest.mark.cve("CVE-2017-4966")
async def test_who_logs_in_on_the_page_stays_until_he_logs_out(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    wrong = {"user": "eve", "password": "no"}
    assert "do not go together" in (await ask.post("/api/v1/login", wrong, status=401))["error"]
    async with ask.session.post(ask.base + "/api/v1/login", json={"user": "eve", "password": "drops"}) as answer:
        cookie = answer.headers["Set-Cookie"]
        assert (await answer.json())["user"] == "eve"
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert (await ask.get("/api/v1/me"))["user"] == "eve"
    await ask.post("/api/v1/logout")
    await ask.get("/api/v1/me", status=401)
    async with ask.session.get(ask.base + "/api/v1/me", headers={"Cookie": cookie.partition(";")[0]}) as answer:
        assert answer.status == 401


@pytest.mark.cve("CVE-2021-46434")
async def test_who_is_no_user_is_told_what_a_wrong_password_is_told(secured: tuple[Cluster, Asking]) -> None:
    _, ask = secured
    tried = [{"user": user, "password": "no"} for user in ("eve", "mallory")]
    known, unknown = [await ask.post("/api/v1/login", each, status=401) for each in tried]
    assert known == unknown


async def test_a_user_who_is_gone_is_let_out(secured: tuple[Cluster, Asking]) -> None:
    cluster, ask = secured
    await ask.post("/api/v1/login", {"user": "eve", "password": "drops"})
    await cluster.coordination.give_security({"passwords": passwords("ada"), "rules": ACL.encode()})
    status = 200
    while status == 200:
        async with ask.session.get(ask.base + "/api/v1/me") as answer:
            status = answer.status
    assert status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Authorization": "Basic \u00e9"}, 401), ({"Authorization": "Basic /w=="}, 401), ({"Origin": "http://["}, 403)],
    ids=str,
)
async def test_odd_headers_are_no_defect(secured: tuple[Cluster, Asking], headers: dict[str, str], status: int) -> None:
    _, ask = secured
    await ask.post("/api/v1/publish", {"topic": "work/a", "payload": "x"}, status=status, headers=headers)


@pytest.fixture
async def open_to_the_machine(tmp_path: Path) -> AsyncIterator[Asking]:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster) as server, asking(server) as someone:
            yield someone


@pytest.mark.cve("CVE-2024-32114")
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "attacker.example:80"},
        {"X-Forwarded-For": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
        {"Via": "1.1 proxy"},
    ],
    ids=str,
)
async def test_without_users_the_machine_itself_is_an_operator_and_nobody_else(
    open_to_the_machine: Asking, headers: dict[str, str]
) -> None:
    ask = open_to_the_machine
    assert (await ask.get("/api/v1/me"))["operator"] is True
    assert (await ask.get("/api/v1/me", headers={"Host": "localhost:1"}))["operator"] is True
    await ask.get("/api/v1/me", status=401, headers=headers)


async def test_pages_of_other_sites_ask_nothing_of_it(open_to_the_machine: Asking) -> None:
    ask, other = open_to_the_machine, {"Origin": "https://attacker.example"}
    await ask.post("/api/v1/publish", {"topic": "a", "payload": "x"}, status=403, headers=other)
    await ask.post("/api/v1/sessions/disconnect?id=a", status=403, headers=other)
    own = {"Origin": ask.base}
    await ask.post("/api/v1/publish", {"topic": "a", "payload": "x"}, headers=own)
    async with ask.session.post(ask.base + "/api/v1/publish", data='{"topic": "a", "payload": "x"}') as answer:
        assert answer.status == 400, "a form can send text, and may not"
    async with ask.session.get(ask.base + "/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.cve("CVE-2023-46118")
async def test_bodies_are_bounded(open_to_the_machine: Asking) -> None:
    body = BytesIO(b'{"topic": "a", "payload": "' + b"x" * 2**20 + b'"}')
    headers = {"Content-Type": "application/json"}
    ask = open_to_the_machine
    async with ask.session.post(ask.base + "/api/v1/publish", data=body, headers=headers) as answer:
        assert answer.status == 413


async def test_a_body_that_does_not_come_is_not_waited_for(
    open_to_the_machine: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "BODY_S", 0.1)
    port = int(open_to_the_machine.base.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    writer.write(head.encode() + b"{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()


def test_a_token_says_nothing_of_the_key() -> None:
    assert operator_token(b"k" * 32) != operator_token(b"l" * 32)
    assert "6b6b" not in operator_token(b"k" * 32)
    assert not Rights().restricted
