"""A broker follows the files of security, as it follows the membership, which tells their version.

It has them before it lets anybody in, for its configuration says which there are. Where the coordination server has
lost them (it tells a lower version, mostly 0), whoever serves keeps to what it has and gives it back; whoever starts
waits for that, or for `lexicast security reload`. What cannot be read, or lacks a file, is not taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from lexicast.cluster.config.tables import SecurityConfig
from lexicast.cluster.errors import ConfigError, LexicastError, UnavailableError
from lexicast.cluster.membership import OperatedCoordination
from lexicast.cluster.security.files import NOTHING_KNOWN, SecurityContents, SecurityFiles, contents, lacking, wanted

log = logging.getLogger(__name__)

READY_S: Final = 30.0
RETRY_S: Final = 0.2


class SecurityFollowing:
    """See the module's docstring. `take(files, contents)` has what stands in new files hold; raises ConfigError where
    it cannot, and changes nothing then."""

    def __init__(
        self,
        config: SecurityConfig,
        coordination: OperatedCoordination,
        take: Callable[[SecurityFiles, SecurityContents], None],
    ) -> None:
        self._config = config
        self._coordination = coordination
        self._take = take
        self.files = NOTHING_KNOWN
        self._told = -1
        self._passed_over = -1
        self._error = ""
        self._changed = asyncio.Event()

    def follow(self, version: int) -> None:
        """The membership tells this version."""
        if version != self._told:
            self._told = version
            self._changed.set()

    async def ready(self) -> None:
        """Returns when it has what the configuration names. Raises UnavailableError after READY_S, LexicastError."""
        try:
            async with asyncio.timeout(READY_S):
                while self._waits():
                    await self._fetch()
                    if self._waits():
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            what = " and the ".join(lacking(self._config, self.files)) or "files of security"
            raise UnavailableError(
                f"the coordination server does not know the {what} "
                f"({self._error or 'its registry was lost'}): run `lexicast security reload`"
            ) from None

    def _waits(self) -> bool:
        return bool(lacking(self._config, self.files)) or (self._told > 0 and not self.files.version)

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._catch_up()
            except LexicastError as error:
                log.debug("files of security: %s", error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _catch_up(self) -> None:
        while self._told not in (self.files.version, self._passed_over):
            if self._told < self.files.version:
                if wanted(self._config):  # else there is nothing to give back
                    await self._coordination.restore_security(self.files)
                return  # taken, or it has newer ones by now: the membership tells
            if not await self._fetch():
                return  # it has lost them again: the membership tells of the next version

    async def _fetch(self) -> bool:
        """Take the coordination server's files where they are new; whether there are such."""
        files = await self._coordination.security()
        if files.version <= max(self.files.version, self._passed_over):
            return False
        try:
            if missing := lacking(self._config, files):
                raise ConfigError(f"there is no {' and no '.join(missing)} among them")
            found = await asyncio.to_thread(contents, files)
            self._take(files, found)
        except ConfigError as error:
            log.error("the files of security of version %d are not taken: %s", files.version, error)
            self._passed_over, self._error = files.version, str(error)
        else:
            self.files, self._error = files, ""
        return True

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {"version": self.files.version, "error": self._error}
