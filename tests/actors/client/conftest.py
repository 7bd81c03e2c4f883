"""What tests of the Python client begin with: a broker without a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.testing import MemoryBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[MemoryBroker]:
    made = MemoryBroker(4)
    await made.listen(f"unix:{tmp_path}/s")
    yield made
    made.close()
