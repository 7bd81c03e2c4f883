"""Workers run the suite side by side (`make test`, pytest-xdist): a file stays with one, and ends as one line.

Half of the suite's time is waiting: for processes that start, for sockets, for periods. What starts Ray is one unit of
work, begun first: two Rays at once would take each other's memory and cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from .units_of_work import file_of, unit_of

Status = tuple[str, str, Any]  # category, letter, word
COLOURS: Final = {".": "green", "F": "red", "E": "red"}


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types where it is not installed
    """Hands out units of work, in the order in which they are collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class SideBySide:
    """The plugin of the process that hands out tests and prints what became of them."""

    def __init__(self, config: pytest.Config) -> None:
        terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._terminal = terminal
        self._quiet = config.get_verbosity() <= 0  # else a line a test, as xdist prints it
        if self._quiet:
            terminal._show_progress_info = False  # it would be that of letters which are not printed
        self._total = self._ended = 0
        self._left: Counter[str] = Counter()
        self._letters: defaultdict[str, list[str]] = defaultdict(list)
        self._reporting = False

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> UnitScheduling:
        config.option.loadscopereorder = False
        return UnitScheduling(config, log)

    @pytest.hookimpl
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._total = len(ids)
        self._left = Counter(map(file_of, ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        self._reporting = True
        yield
        self._reporting = False

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Generator[None, Status, Status]:
        """Keeps the letter of a test for its file's line."""
        category, letter, word = yield
        if not (self._quiet and self._reporting):
            return category, letter, word
        if letter:
            self._letters[file_of(report.nodeid)].append(letter)
        return category, "", ""

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        file = file_of(nodeid)
        self._ended += 1
        self._left[file] -= 1
        if self._quiet and not self._left[file]:
            self._print(file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Files that were not run to their end: a worker died, or no more was wanted (-x)."""
        for file in list(self._letters):
            self._print(file)

    def _print(self, file: str) -> None:
        self._terminal.ensure_newline()
        self._terminal.write(f"{file} ")
        for letter in self._letters.pop(file, ()):
            self._terminal.write(letter, **{COLOURS.get(letter, "yellow"): True})
        self._terminal.write_line(f" [{100 * self._ended // self._total:3d}%]")
