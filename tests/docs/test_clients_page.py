"""docs/clients.md says what is tested, and what is not has its reason."""

from __future__ import annotations

import runpy

from ..clients.matrix import CLIENTS, FEATURES, LACKS
from ..support.statements import ROOT


def test_the_page_is_what_the_matrix_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "clients_page.py"))
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert text == script["page"](), "write it anew: python scripts/clients_page.py"


def test_what_is_lacking_is_of_the_matrix() -> None:
    assert all(client in CLIENTS and feature in FEATURES for client, feature in LACKS)
