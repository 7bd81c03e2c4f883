"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_code_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "api_page.py"))
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert text == script["page"](), "write it anew: python scripts/api_page.py"
    assert "None" not in text.splitlines(), "something public has no docstring"
