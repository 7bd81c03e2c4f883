"""The demo on the page: where aircraft are, and a short run from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lexicast.bench.data.flights import Event, prepare_flights
from lexicast.bench.demo_page.aircraft import Aircraft, Airport, aircraft, airports, between, distance_km
from lexicast.bench.demo_page.driver import Events
from lexicast.bench.demo_page.pictures import write
from lexicast.cluster.errors import UnavailableError

JFK, LAX = Airport("JFK", 40.64, -73.78), Airport("LAX", 33.94, -118.41)
LEFT = datetime(2013, 1, 1, 12, tzinfo=UTC)

places = st.builds(Airport, st.just("A"), st.floats(-80, 80), st.floats(-170, 170))


def test_the_distance_is_the_one_that_is_flown() -> None:
    assert distance_km(JFK, LAX) == pytest.approx(3_975, abs=15)  # the data says 2,475 miles


@given(places, places, st.floats(0, 1))
def test_who_is_between_two_places_is_on_the_shortest_way(one: Airport, other: Airport, done: float) -> None:
    whole = distance_km(one, other)
    if whole > 19_000:  # nearly opposite: there are many shortest ways
        return
    here = Airport("here", *between(one, other, done))
    assert distance_km(one, here) == pytest.approx(done * whole, abs=0.5)
    assert distance_km(one, here) + distance_km(here, other) == pytest.approx(whole, abs=1.0)


def test_an_aircraft_tells_where_it_is() -> None:
    topic, payload = Aircraft("AA1", JFK, LAX, LEFT, LEFT + timedelta(hours=6)).message(LEFT + timedelta(hours=3))
    said = json.loads(payload)
    assert topic == "aircraft/AA1"
    assert (said["lat"], said["lon"]) == (pytest.approx(39.5, abs=1), pytest.approx(-97, abs=2))
    assert said["left_km"] == pytest.approx(1_987, abs=10)


def test_the_year_begins_again_behind_its_end(tmp_path: Path) -> None:
    replay = prepare_flights(200, tmp_path / "events.tsv")
    events, hour = Events(replay), timedelta(hours=1)
    seen: list[Event] = []
    while len(seen) < len(replay.events):
        seen += events.until(hour)[1]
    assert seen == replay.events
    assert events.until(hour)[1][0] == replay.events[0]
    assert len(list(aircraft(seen, airports()))) > 150


def test_a_picture_is_small_or_refused(tmp_path: Path) -> None:
    def drawn(draw: Image.Image) -> bytes:
        file = BytesIO()
        draw.save(file, "PNG")
        return file.getvalue()

    written = write(drawn(Image.new("RGB", (600, 400), "teal")), tmp_path / "plain.png")
    assert written.stat().st_size < 5_000
    assert Image.open(written).convert("RGB").getpixel((9, 9)) == (0, 128, 128)
    with pytest.raises(UnavailableError, match=r"noise\.png has"):
        write(drawn(Image.frombytes("RGB", (700, 700), Random(1).randbytes(3 * 700 * 700))), tmp_path / "noise.png")
    assert not (tmp_path / "noise.png").exists()


def test_a_short_run_shows_flights_on_the_page() -> None:
    command = [sys.executable, "-m", "lexicast.bench.demo", "--page", "--messages", "500", "--seconds", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = next(line for line in process.stdout if line.startswith("The page: "))
        page, found = said.split()[2], list[dict[str, str]]()
        while not found:
            query = "api/v1/history?filter=aircraft/%23&since=beginning&limit=5"
            with urllib.request.urlopen(page + query, timeout=20) as answer:
                found = json.load(answer)["rows"]
        assert {"lat", "lon", "origin", "dest", "left_km"} == json.loads(found[0]["payload"]).keys()
        process.stdout.read()
    assert process.returncode == 0
