"""What tests of the cores share: a few kicks instead of fifty, since hundreds of small systems are improved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lexicast.ft import improvement


@pytest.fixture(autouse=True, scope="session")
def few_kicks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(improvement, "KICKS", 3)
        yield
