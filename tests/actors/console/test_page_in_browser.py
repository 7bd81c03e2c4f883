"""The page in a real Chromium, as a person goes through it: a first message, every view, a phone, whoever does not see.

LEXICAST_PICTURES=FOLDER keeps what is seen, for whoever changes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

import lexicast
from lexicast.bench.stage.ports import free_port

from ...support.up import lexicast_up

CHROMIUM = shutil.which("chromium") or ""
try:
    playwright: Any = import_module("playwright.sync_api")
    AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
except ImportError:
    playwright, AXE = None, ""

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and playwright), reason="Debian's chromium or playwright is not here: make test installs both"
)

VIEWS = ("overview", "sessions", "topics", "messages", "families", "sql")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
FIRST_LOAD_KIB_MAX = 300
WAIT_MS = 60_000.0
MARKUP = "<img src=x onerror=\"document.title='taken'\">"
PICTURES = os.environ.get("LEXICAST_PICTURES", "")


class Seen(NamedTuple):
    """A page of the browser, what went wrong on it, and what it has loaded: (path, bytes on the wire)."""

    page: Any
    wrong: list[str]
    loaded: list[tuple[str, int]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("page")
    with lexicast_up(folder, "--mqtt-port", "0", "--page", str(free_port())) as run:
        yield run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def seen(request: pytest.FixtureRequest, browser: Any, cluster: dict[str, Any]) -> Iterator[Seen]:
    context = browser.new_context(viewport=request.param, base_url=cluster["pages"][0])
    context.set_default_timeout(WAIT_MS)
    page, wrong, loaded = context.new_page(), list[str](), list[tuple[str, int]]()
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfinished", lambda each: loaded.append((each.url, each.sizes()["responseBodySize"])))
    yield Seen(page, wrong, loaded)
    context.close()
    assert wrong == []


def picture(page: Any, name: str) -> None:
    """Keep what is seen."""
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def serious(page: Any) -> list[str]:
    """What axe-core finds serious, or worse."""
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['nodes'][0]['html']} {each['nodes'][0].get('failureSummary', '')}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def fits(page: Any) -> bool:
    """Whether nothing has to be scrolled sideways."""
    return bool(page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_first_visit_comes_to_a_first_message(seen: Seen) -> None:
    """With nothing but the page."""
    page = seen.page
    page.goto("/")
    page.wait_for_selector("table[aria-label=Processes]")
    processes = page.locator("table[aria-label=Processes] tbody tr")
    assert processes.count() >= 4
    assert all("serves" in each for each in processes.all_inner_texts())
    assert sum(size for _, size in seen.loaded) < FIRST_LOAD_KIB_MAX * 1024
    if page.locator("text=publish a first message").count():
        page.click("text=publish a first message")
    else:  # somebody was here before
        page.goto("/#messages?topic=hello/world&payload=Hello")
    page.wait_for_selector("text=following #")
    page.click("button:has-text('Publish')")
    page.wait_for_selector("ol.messages .topic:has-text('hello/world')")
    assert page.locator("ol.messages code").first.inner_text() == "Hello"
    assert fits(page)


def test_numbers_become_a_chart_and_places_a_map(seen: Seen, cluster: dict[str, Any]) -> None:
    page = seen.page
    page.goto("/#messages?filter=trucks/%23")
    page.wait_for_selector("text=following trucks/#")
    with lexicast.sync.connect(data_dir=cluster["data_dir"]) as bus:
        for number in range(12):
            payload = f'{{"lat": {40 + number / 2}, "lon": {-100 + number}, "speed": {50 + number * number}}}'
            bus.publish(f"trucks/{number % 4}", payload)
        bus.publish("trucks/lost", '{"lat": null, "lon": null, "speed": 0}')
    page.wait_for_selector("ol.messages .topic:has-text('trucks/lost')")
    page.wait_for_selector("svg.chart circle >> nth=3", state="attached")
    page.wait_for_selector("svg.chart path.land", state="attached")
    assert page.locator("svg.chart circle").count() == 4
    page.select_option("select[name=field]", "speed")
    assert "speed" in str(page.get_attribute("svg.chart >> nth=0", "aria-label"))
    picture(page, f"messages-{page.viewport_size['width']}")
    assert fits(page)
    assert serious(page) == []


def test_the_past_is_shown_with_a_condition(seen: Seen, cluster: dict[str, Any]) -> None:
    page = seen.page
    with lexicast.sync.connect(data_dir=cluster["data_dir"]) as bus:
        for delay in (5, 50):
            bus.publish("flights/JFK", f'{{"delay": {delay}, "number": 12345678901234567890}}')
    page.goto("/#messages?filter=flights/%23")
    page.fill("input[name=where]", "delay > 30")
    page.click("text=Show the past")
    page.wait_for_selector("ol.messages code")
    shown = {each.strip() for each in page.locator("ol.messages code").all_inner_texts()}
    assert shown == {'{"delay": 50, "number": 12345678901234567890}'}, "as it was published, to the last digit"


def test_the_tree_opens_level_by_level(seen: Seen, cluster: dict[str, Any]) -> None:
    page = seen.page
    with lexicast.sync.connect(data_dir=cluster["data_dir"]) as bus:
        bus.publish("plant/line/1/motor", "1")
    page.goto("/#topics")
    for level in ("plant", "line", "1"):
        page.click(f"ul.tree button[aria-expanded=false]:has-text('{level}')")
    page.click("ul.tree a:has-text('motor')")
    page.wait_for_selector("ol.messages .topic:has-text('plant/line/1/motor')")


@pytest.mark.cve("CVE-2018-8006", "CVE-2020-13821", "CVE-2021-32718")
def test_what_others_say_is_text_and_never_a_page(seen: Seen, cluster: dict[str, Any]) -> None:
    """Client ids, topics, payloads, and whoever gives somebody a link to the page."""
    page, link = seen.page, quote(MARKUP)
    client = paho.Client(CallbackAPIVersion.VERSION2, MARKUP)
    client.connect("127.0.0.1", int(cluster["mqtt_port"]))
    client.loop_start()
    try:
        client.publish(f"markup/{MARKUP}", MARKUP, qos=1).wait_for_publish(WAIT_MS / 1_000)
        page.goto("/#sessions")
        page.wait_for_selector("table[aria-label=Clients] th:has-text('onerror')")
        assert page.locator("main img").count() == 0
        page.goto("/#topics")
        page.click("ul.tree button[aria-expanded=false]:has-text('markup')")
        page.wait_for_selector("ul.tree a:has-text('onerror')")
        assert page.locator("main img").count() == 0
        page.goto(f"/#messages?filter=markup/%23&past=1&topic={link}&payload={link}")
        page.wait_for_selector("ol.messages code:has-text('onerror')")
        assert page.input_value("textarea[name=payload]") == MARKUP
        assert page.locator("main img").count() == 0
        assert "taken" not in page.title()
    finally:
        client.loop_stop()
        client.disconnect()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_for_everybody(seen: Seen, view: str, scheme: str) -> None:
    """For who does not see it (axe-core), on a phone's width, in light and dark."""
    page = seen.page
    page.emulate_media(color_scheme=scheme)
    page.goto(f"/#{view}")
    page.wait_for_selector("h1")
    page.wait_for_load_state("networkidle") if view not in ("messages",) else page.wait_for_selector("text=following")
    page.wait_for_timeout(300)
    picture(page, f"{view}-{scheme}-{page.viewport_size['width']}")
    said = page.inner_text("body")
    assert not [each for each in ("[object", "undefined", "NaN") if each in said]
    assert serious(page) == []
    assert fits(page)


def test_what_comes_late_is_of_no_view_that_was_left(seen: Seen) -> None:
    page, held, streams = seen.page, list[Any](), list[str]()
    page.on("request", lambda each: streams.append(each.url) if "/stream" in each.url else None)
    for late in ("**/families.js", "**/api/v1/history*"):
        page.route(late, lambda route: held.append(route))
    page.goto("/#overview")
    page.wait_for_selector("text=stored a second")
    for view, asked in (("families", "families.js"), ("messages?filter=a&past=1", "history")):
        with page.expect_request(lambda each, asked=asked: asked in each.url):
            page.evaluate("(view) => { location.hash = view; }", view)
        page.evaluate("() => { location.hash = 'topics'; }")
        page.wait_for_selector("h1:has-text('Topics')")
        with page.expect_request_finished(lambda each, asked=asked: asked in each.url):
            held.pop().continue_()
        page.wait_for_timeout(300)
        assert page.inner_text("h1") == "Topics"
    assert streams == []


def test_who_looks_again_asks_once(seen: Seen) -> None:
    page = seen.page
    page.goto("/")
    most = page.evaluate("""async () => {
        const { repeat } = await import("/repeat.js");
        const pause = (ms) => new Promise((done) => setTimeout(done, ms));
        let [now, most] = [0, 0];
        const work = async () => { now += 1; most = Math.max(most, now); await pause(50); now -= 1; };
        const end = repeat(work, 1, () => {});
        document.dispatchEvent(new Event("visibilitychange"));
        await pause(200);
        end();
        return most;
    }""")
    assert most == 1


def test_what_is_old_does_not_pass_for_now(seen: Seen) -> None:
    page = seen.page
    page.goto("/#overview")
    page.wait_for_selector("table[aria-label=Processes]")
    page.route("**/api/v1/status", lambda route: route.fulfill(status=503, json={"error": "no broker answers"}))
    page.wait_for_selector("text=/All below is as it was at .* no broker answers/")
    page.unroute("**/api/v1/status")
    page.wait_for_selector("p[role=alert]", state="hidden")
    assert all("503" in each for each in seen.wrong)  # what the browser itself says of it
    seen.wrong.clear()


def test_what_is_not_answered_does_not_pass_for_now(seen: Seen) -> None:
    """A page whose console was asked and said nothing showed what had been."""
    page, held = seen.page, list[Any]()
    page.goto("/#overview")
    page.wait_for_selector("table[aria-label=Processes]")
    page.route("**/api/v1/status", lambda route: held.append(route))
    page.wait_for_selector("text=/All below is as it was at .* has not answered for 4 s/")
    held[0].continue_()
    page.unroute("**/api/v1/status")
    page.wait_for_selector("p[role=alert]", state="hidden")


def test_who_leaves_the_view_of_sql_calls_the_question_off(seen: Seen) -> None:
    page = seen.page

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"available": True, "why_not": "", "running": True})

    page.route("**/api/v1/sql", answer)
    page.goto("/#sql")
    page.click("button:has-text('Ask')")
    page.wait_for_selector("text=Spark computes")
    with page.expect_event("requestfailed", lambda request: request.method == "POST"):
        page.goto("/#topics")
    page.goto("/#overview")
    page.wait_for_selector("table[aria-label=Processes]")


def test_without_spark_sql_says_what_is_missing(seen: Seen) -> None:
    page = seen.page
    page.route(
        "**/api/v1/sql",
        lambda route: route.fulfill(json={"available": False, "why_not": "No Java: install it", "running": False}),
    )
    page.goto("/#sql")
    page.wait_for_selector("text=No Java: install it")
    assert "make spark" in page.inner_text("main")
    assert serious(page) == []
    assert fits(page)


def test_a_question_in_sql_is_asked_and_answered(seen: Seen) -> None:
    page, asked = seen.page, list[Any]()
    answers = [
        (400, {"error": "the SQL names x: the tables are history"}),
        (
            200,
            {
                "columns": ["topic", "n", "n"],
                "rows": [["a/b", 12345, None], ["c", 0.5, "<b>"]],
                "more": True,
                "took_s": 1.5,
            },
        ),
    ]

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"available": True, "why_not": "", "running": False})
            return
        asked.append(route.request.post_data_json)
        status, told = answers[len(asked) - 1]
        route.fulfill(status=status, json=told)

    page.route("**/api/v1/sql", answer)
    page.goto("/#sql")
    page.click("button:has-text('Ask')")
    page.wait_for_selector("p[role=alert]:has-text('the tables are history')")
    page.fill("textarea[name=statement]", "SELECT topic FROM history")
    page.check("input[name=fields]")
    page.click("button:has-text('Ask')")
    page.wait_for_selector("table[aria-label=Answer]")
    assert page.locator("table[aria-label=Answer] tbody tr").all_inner_texts() == ["a/b\t12,345\t", "c\t0.5\t<b>"]
    assert "2 rows in 1.5 s; there are more" in page.inner_text("main")
    settings = {"filter": "#", "since": "1h", "where": "", "schema": "json", "limit": 100}
    assert asked[1] == {"statement": "SELECT topic FROM history"} | settings
    assert serious(page) == []
    assert fits(page)
    assert all("400" in each for each in seen.wrong)
    seen.wrong.clear()


def test_everything_is_reached_by_keyboard(seen: Seen) -> None:
    page = seen.page
    page.goto("/#overview")
    page.wait_for_selector("text=stored a second")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    names = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        names.add(page.evaluate("() => document.activeElement.textContent.trim()"))
    assert {"Overview", "Sessions", "Topics", "Messages", "Families", "SQL"} <= names
