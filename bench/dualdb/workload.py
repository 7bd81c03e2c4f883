"""The paper's workload (section 6.1): operations at skewed places of New York State, times by a simulated clock.

A bounding box in 500 x 500 cells; a cell's number is the ID. Each operation is a subscription (10 s back and 10 s
ahead) or a publication (lives 20 s); time passes at a fixed rate of operations, so every engine holds the same items at
the same operation.

Places are the pick-ups of a taxi file (DEBS 2015 columns) where one is given, otherwise drawn from a mixture of the
state's cities by population: the paper's 15 million tweets are not public.

The box is that of the data's region, as in the paper: the state's for the mixture, the city's for taxis. In the state's
box the pick-ups lie in some 150 cells of Manhattan (the mixture in some 20,000): at 2,000 operations a second each has
245 answers, gathering them is most of what any engine does, and with so few lists to keep a key-value store does as
well as DualDB (LevelDB 0.96, RocksDB 0.83, RepQueries 9.3, PADRES 6.5 times DualDB's time). `--box` chooses.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexicast.cluster.errors import UsageError
from lexicast.storage.dualdb.batches import PUBLISH, SUBSCRIBE, OperationBatch

CELLS_A_SIDE = 500


class DegreeBox(NamedTuple):
    """Degrees from south to north and from west to east."""

    latitudes: tuple[float, float]
    longitudes: tuple[float, float]


STATE = DegreeBox((40.477, 45.016), (-79.763, -71.752))
CITY = DegreeBox((40.49, 40.92), (-74.27, -73.68))
BOXES = {"state": STATE, "city": CITY}
WINDOW_US = 10_000_000
LIFE_US = 20_000_000
TAXI_FILE = "debs2015_taxi.csv.gz"
START_US = 1_500_000_000_000_000

# (latitude, longitude, thousands of people, kilometres of standard deviation): the 2020 census, rounded.
CITIES = (
    (40.78, -73.97, 1_690, 5),
    (40.65, -73.95, 2_740, 6),
    (40.72, -73.80, 2_410, 7),
    (40.85, -73.87, 1_470, 5),
    (40.58, -74.15, 500, 5),
    (40.73, -73.58, 1_400, 12),
    (40.85, -73.00, 1_530, 25),
    (41.05, -73.78, 1_000, 12),
    (42.89, -78.87, 1_170, 12),
    (43.16, -77.61, 1_090, 12),
    (42.65, -73.76, 900, 15),
    (41.70, -73.93, 700, 20),
    (43.05, -76.15, 660, 12),
    (43.10, -75.23, 290, 12),
    (42.10, -75.91, 250, 12),
)
EVERYWHERE = 0.1
"""The part of the operations that may be anywhere in the box."""

TEXT = (
    "Accident on the right lane, traffic backs up to the exit before; expect some minutes of delay. "
    "Police and a tow truck are there."
)


class Workload(NamedTuple):
    """What to generate: places (cells), the part of subscriptions, operations a second of simulated time."""

    cells: NDArray[np.uint64]
    subscriptions: float
    rate: int
    batch: int
    seed: int


def cells_of(latitude: NDArray[np.float64], longitude: NDArray[np.float64], box: DegreeBox) -> NDArray[np.uint64]:
    """The cells of places; those outside the box are left out."""
    row, column = [
        np.floor((place - low) / (high - low) * CELLS_A_SIDE).astype(np.int64)
        for place, (low, high) in ((latitude, box.latitudes), (longitude, box.longitudes))
    ]
    inside = (row >= 0) & (row < CELLS_A_SIDE) & (column >= 0) & (column < CELLS_A_SIDE)
    return (row[inside] * CELLS_A_SIDE + column[inside]).astype(np.uint64)


def city_cells(seed: int, count: int = 1_000_000, box: DegreeBox = STATE) -> NDArray[np.uint64]:
    """Places of people, by the mixture of cities."""
    random = np.random.default_rng(seed)
    people = np.array([city[2] for city in CITIES], np.float64)
    chosen = random.choice(len(CITIES), count, p=people / people.sum())
    table = np.array(CITIES)[chosen]
    spread = table[:, 3] / 111.2
    latitude = table[:, 0] + random.normal(0, 1, count) * spread
    longitude = table[:, 1] + random.normal(0, 1, count) * spread / np.cos(np.radians(table[:, 0]))
    anywhere = random.random(count) < EVERYWHERE
    latitude[anywhere] = random.uniform(*STATE.latitudes, int(anywhere.sum()))
    longitude[anywhere] = random.uniform(*STATE.longitudes, int(anywhere.sum()))
    return cells_of(latitude, longitude, box)


def taxi_cells(folder: Path, box: DegreeBox = CITY) -> NDArray[np.uint64]:
    """Pick-ups of the taxi file in `folder`. Raises UsageError."""
    path = folder / TAXI_FILE
    if not path.exists():
        raise UsageError(f"there is no {TAXI_FILE} in {folder}: leave --data away for the mixture of cities")
    with gzip.open(path, "rt") as file:
        places = np.array([line.split(",")[6:8] for line in file], np.float64)
    return cells_of(places[:, 1], places[:, 0], box)


def workload_batches(workload: Workload, operations: int) -> Iterator[OperationBatch]:
    """The operations, `workload.batch` at a time; the same ones for the same workload."""
    starts = range(0, operations, workload.batch)
    return batches_of(workload, [min(workload.batch, operations - first) for first in starts])


def batches_of(workload: Workload, counts: Iterable[int]) -> Iterator[OperationBatch]:
    """The same, so many at a time."""
    random = np.random.default_rng(workload.seed)
    text = [f"{number:08d} {TEXT}".encode() for number in range(4_096)]
    first = 0
    for count in counts:
        yield _batch(workload, random, text, first, count)
        first += count


def _batch(
    workload: Workload, random: np.random.Generator, text: list[bytes], first: int, count: int
) -> OperationBatch:
    number = np.arange(first, first + count)
    kind = np.where(random.random(count) < workload.subscriptions, SUBSCRIBE, PUBLISH).astype(np.uint8)
    time = (START_US + number * 1_000_000 // workload.rate).astype(np.int64)
    publishing = kind == PUBLISH
    low = np.where(publishing, time, time - WINDOW_US)
    high = np.where(publishing, time + LIFE_US, time + WINDOW_US)
    cell = workload.cells[random.integers(0, len(workload.cells), count)]
    payloads = [text[at % len(text)] for at in number[publishing].tolist()]
    return OperationBatch(kind, cell, time, low, high, number.astype(np.uint64), payloads)
