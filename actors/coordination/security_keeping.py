"""The part of the coordination server that keeps the files of security (`cluster.security.files`): brokers follow it.

Who loses them must not pass for who has none. So where a row is damaged, or the registry is lost, version 0 is told:
nothing is known. Brokers that serve keep to what they have, and give it back (`restore_security`), the newest one
counts; brokers that start let nobody in before they have what their configuration names.

Registry keys: security (version, by name a digest and a number of pieces), security/KIND/NNNNN (pieces: a row has
at most 1 MiB), security_refused (what `lexicast security reload` found wrong in the newest files, and when).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from lexicast.cluster.errors import ConfigError, UsageError
from lexicast.cluster.security.files import NOTHING_KNOWN, TITLES, SecurityFiles, changes, contents, file_digest
from lexicast.storage.registry import Registry

log = logging.getLogger(__name__)

KEY: Final = "security"
REFUSED_KEY: Final = "security_refused"
PIECE_BYTES: Final = 512 * 1024
REFUSED_CHARACTERS_MAX: Final = 1_000


class SecurityKeeping(ABC):
    """See the module's docstring."""

    _registry: Registry
    security_files: SecurityFiles = NOTHING_KNOWN
    # Where the files lie on this node, by the fields of SecurityFiles, as `lexicast up` was told.
    security_paths: Mapping[str, str] = MappingProxyType({})

    # The algorithms of tokens that brokers take.
    token_algorithms: Sequence[str] = ()

    @abstractmethod
    def _commit_version(self, changes: Mapping[str, Any]) -> None:
        """Commit a change that whoever follows the membership hears of."""

    def _load_security(self) -> None:
        head = self._registry.get(KEY)
        if head is not None:
            found = {kind: self._load_file(kind, said) for kind, said in head["files"].items()}
            if None not in found.values():
                self.security_files = SecurityFiles(head["version"], **found)
                return
        if head is not None or self._registry.is_damaged(KEY):
            log.error("the files of security are damaged in the registry: brokers are asked for them")

    def _load_file(self, kind: str, said: tuple[bytes, int]) -> bytes | None:
        """A file's content; None where a piece of it is lost."""
        digest, count = said
        pieces = [self._registry.get(_piece(kind, number)) for number in range(count)]
        data = b"".join([piece for piece in pieces if piece is not None])
        return data if file_digest(data) == digest else None

    async def security(self) -> SecurityFiles:
        """See `OperatedCoordination`; so are the next ones."""
        return self.security_files

    async def give_security(self, files: Mapping[str, bytes], starting: bool = False) -> tuple[int, list[str]]:
        if unknown := files.keys() - TITLES:
            raise UsageError(f"{', '.join(sorted(unknown))}: of security there are {', '.join(TITLES)}")
        given, before = SecurityFiles(0, **files), self.security_files
        told = await asyncio.to_thread(_changes, before, given)  # 60,000 users take 0.5 s
        known = self.security_files
        if known.version and not starting:
            for kind in given.given().keys() ^ known.given().keys():
                raise UsageError(
                    f"which files there are is decided when the cluster starts: restart it ({TITLES[kind]})"
                )
        if known.version and given == known._replace(version=0):
            self._registry.commit({REFUSED_KEY: None})
            return known.version, []
        self._keep_security(given._replace(version=max(time.time_ns() // 1_000, known.version + 1)))
        return self.security_files.version, told

    async def restore_security(self, files: SecurityFiles) -> bool:
        if files.version <= self.security_files.version:
            return False
        await asyncio.to_thread(contents, files)
        if files.version <= self.security_files.version:
            return False  # another broker was faster
        log.warning("the files of security are taken from a broker: version %d", files.version)
        self._keep_security(files)
        return True

    async def refuse_security(self, why: str) -> None:
        row = {"why": why[:REFUSED_CHARACTERS_MAX], "at_us": time.time_ns() // 1_000}
        self._registry.commit({REFUSED_KEY: row})

    def _keep_security(self, files: SecurityFiles) -> None:
        rows: dict[str, Any] = dict.fromkeys(self._registry.items(f"{KEY}/"))
        for kind, data in files.given().items():
            for at in range(0, len(data), PIECE_BYTES):
                rows[_piece(kind, at // PIECE_BYTES)] = data[at : at + PIECE_BYTES]
        self._commit_version({**rows, KEY: _head(files), REFUSED_KEY: None})
        self.security_files = files

    def security_status(self) -> dict[str, Any]:
        """For `lexicast status` and `lexicast security reload`; no content."""
        files = self.security_files
        return {
            "version": files.version,
            "paths": dict(self.security_paths),
            "jwt_algorithms": list(self.token_algorithms),
            "bytes": {kind: len(data) for kind, data in files.given().items()},
            "refused": self._registry.get(REFUSED_KEY),
        }


def _changes(before: SecurityFiles, given: SecurityFiles) -> list[str]:
    """What is different, in words. Raises ConfigError for what is given alone: what was taken by an earlier version of
    lexicast, and would not be now, must not be in the way of its mending."""
    after = contents(given)
    try:
        return changes(contents(before), after)
    except ConfigError as error:
        log.warning("the files of security until now would not be taken any more: %s", error)
        return changes(contents(NOTHING_KNOWN), after)


def _head(files: SecurityFiles) -> dict[str, Any]:
    sizes = {kind: [file_digest(data), -(-len(data) // PIECE_BYTES)] for kind, data in files.given().items()}
    return {"version": files.version, "files": sizes}


def _piece(kind: str, number: int) -> str:
    return f"{KEY}/{kind}/{number:05d}"
