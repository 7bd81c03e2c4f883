"""What is set aside: blocks of a group that its leader does not have, although they were applied here.

That is no copy any more which could follow: another one was made to lead without it (a registry that was put back, a
store that was away when all others were lost). Its blocks are not what the cluster says, but somebody may want them; so
they lie in a file beside the store, each as it was stored, with its checksums, before the group is copied anew.

The file is msgpack: (group, last offset, the block as it is stored), one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgpack

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import PeerError, StoreFullError

from .log.stored_block import stored_block

PREFIX: Final = "set-aside-"


def set_aside_file(directory: Path, group: int, epoch: int) -> Path:
    """Where the blocks of a group go that a leader of `epoch` does not have."""
    return directory / f"{PREFIX}group-{group}-epoch-{epoch}.blocks"


def set_aside_files(directory: Path) -> list[str]:
    """What was set aside beside a store, by name."""
    return sorted([each.name for each in directory.glob(f"{PREFIX}*")])


def add_set_aside(path: Path, group: int, blocks: Sequence[tuple[int, bytes]]) -> None:
    """Append (last offset, value) of blocks; durable on return. Raises StoreFullError: they cannot be written."""
    try:
        with path.open("ab") as file:
            for last, value in blocks:
                file.write(msgpack.packb((group, last, value)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreFullError(f"{path} cannot be written: {error.strerror}") from None


def read_set_aside(path: Path) -> Iterator[Block]:
    """The blocks of such a file. Raises PeerError where it is damaged."""
    with path.open("rb") as file:
        try:
            for group, last, value in msgpack.Unpacker(file, use_list=False):
                yield stored_block(group, last, value).block
        except (TypeError, ValueError) as error:
            raise PeerError(f"{path} is damaged: {error}") from None
