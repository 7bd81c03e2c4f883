"""The pictures of the page in the README, taken of the demo in Debian's Chromium: `make pictures`.

python -m lexicast.bench.demo_page.pictures docs/pictures
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from PIL import Image
from rich.console import Console

import lexicast
from lexicast.cluster.errors import UnavailableError

from ..data.flights import Replay
from ..demo.on_cluster import DemoCluster, on_cluster
from .aircraft import Airport
from .driver import fly, http_config, prepare_map

# Rates of some ten seconds, aircraft in the air, and dictionaries learned by then.
PLAYED_S: Final = 45.0
WAIT_MS: Final = 60_000.0
COLOURS: Final = 96
BYTES_MAX: Final = 150 * 1024


class Picture(NamedTuple):
    """What is shown, on how large a window, once `there` is (a selector); `press`: then that is pressed."""

    name: str
    view: str
    size: tuple[int, int]
    there: str
    scheme: str = "light"
    press: str = ""


PICTURES: Final = (
    Picture("overview", "overview", (1180, 820), "svg.chart path.a"),
    Picture("map", "messages?filter=aircraft/%23&past=1", (1180, 820), "svg.chart circle >> nth=20"),
    Picture("family", "families", (1180, 820), "table[aria-label=Families] button", press="button.plain"),
    Picture("phone", "topics", (390, 700), "ul.tree li", "dark", "ul.tree button[aria-expanded=false]"),
)


def take(page: str, folder: Path) -> list[Path]:
    """Take all of them of the page at that address."""
    playwright = _playwright()
    taken = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for each in PICTURES:
            width, height = each.size
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=each.scheme)
            context.set_default_timeout(WAIT_MS)
            tab = context.new_page()
            tab.goto(f"{page}#{each.view}")
            tab.wait_for_selector(each.there, state="attached")
            if each.press:
                tab.click(f"{each.press} >> nth=0")
            tab.wait_for_timeout(3_000)  # what comes is drawn some times a second
            taken.append(write(tab.screenshot(), folder / f"{each.name}.png"))
            context.close()
        browser.close()
    return taken


def write(picture: bytes, file: Path) -> Path:
    """Write a picture in few colours, as a page has. Raises UnavailableError: it is too large for a repository."""
    small = BytesIO()
    Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    if len(small.getvalue()) > BYTES_MAX:
        raise UnavailableError(f"{file.name} has {len(small.getvalue()):,} bytes, more than {BYTES_MAX:,}")
    file.write_bytes(small.getvalue())
    return file


def _playwright() -> Any:
    try:
        found: Any = import_module("playwright.sync_api")
    except ImportError:
        found = None
    if found is None or shutil.which("chromium") is None:
        raise UnavailableError("Debian's chromium or playwright is not here: make pictures installs both")
    return found


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    _playwright()

    async def play(cluster: DemoCluster, data: tuple[Replay, dict[str, Airport]]) -> None:
        cluster.begun()
        async with lexicast.connect(data_dir=cluster.data_dir) as bus:
            flown = asyncio.create_task(fly(bus, *data, None))
            try:
                await asyncio.sleep(PLAYED_S)
                for each in await asyncio.to_thread(take, cluster.run["pages"][0], folder):
                    print(each)
            finally:
                flown.cancel()

    on_cluster(Console(), prepare_map, play, keep=False, config=http_config(0))


if __name__ == "__main__":
    main()
