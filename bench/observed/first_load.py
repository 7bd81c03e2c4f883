"""How long a browser that was never here takes to show the page, and what it loads: Debian's Chromium, headless."""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import Any, Final

# Everything of the overview is there.
SHOWN: Final = "table[aria-label=Processes]"
# Milliseconds since the address was asked for, and bytes on the wire, headers too.
TOLD: Final = """() => [performance.now(), ["navigation", "resource"]
    .flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, each) => sum + each.transferSize, 0)]"""


def first_loads(page: str, tries: int) -> list[tuple[float, float]] | None:
    """(milliseconds until the overview is there, KiB) of each try, by a new profile each; None: there is no browser."""
    chromium = shutil.which("chromium")
    try:
        playwright: Any = import_module("playwright.sync_api")
    except ImportError:
        return None
    if chromium is None:
        return None
    found = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(tries):
            context = browser.new_context()
            tab = context.new_page()
            tab.goto(page)
            tab.wait_for_selector(SHOWN)
            took_ms, size = tab.evaluate(TOLD)
            found.append((float(took_ms), size / 1024))
            context.close()
        browser.close()
    return found
