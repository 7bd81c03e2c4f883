"""Every story in `tests/transcripts` is told by a whole cluster as it stands there; see `transcript`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.transcript import Deviation, Story

STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
async def test_the_story_is_told_as_it_stands_there(path: Path, tmp_path: Path) -> None:
    await Story(path, tmp_path).tell()


async def test_a_deviation_is_shown_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(
        "A story that is not so\n\n"
        "alice > CONNECT broker-0 v5 id=alice clean\n"
        "alice < CONNACK present=1\n"
        "alice < nothing\n"
    )
    with pytest.raises(Deviation) as found:
        await Story(path, tmp_path / "cluster").tell()
    lines = str(found.value).strip().splitlines()
    assert lines[-2:] == ["alice < CONNACK present=1", "^" * 40 + " there came CONNACK present=0"]
    assert "alice < nothing" not in lines
