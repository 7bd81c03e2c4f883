"""Parameters that are read quickly: typer converts them by Pydantic, which takes 0.2 s of CPU to load.

That is needed for numbers, choices and files that must exist. What is left out, a text, and a path that may be anything
are taken here as they come; so `lexicast status` does without. Typer is asked for a parameter's conversion by
`get_runtime_param`; where a later version calls that otherwise, commands are slower again and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup


class QuickConversion:
    """The conversion of one parameter; `by_typer` gives typer's own."""

    def __init__(self, parameter: Any, by_typer: Callable[[], Any]) -> None:
        descriptor, info = parameter.type_descriptor, parameter.type_descriptor.parameter_info
        self._by_typer = by_typer
        plain = info.parser is None and not parameter.multiple and parameter.nargs == 1
        checked = info.exists or info.resolve_path or info.allow_dash
        self._is_text = plain and descriptor.annotation is str
        self._is_path = plain and descriptor.annotation is Path and not checked

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that the command gets. Raises as typer does."""
        if value is None and not param.multiple and param.nargs != -1:
            return None
        if isinstance(value, str) and self._is_text:
            return value
        if isinstance(value, str) and self._is_path:
            return Path(value)
        return self._by_typer().coerce(value, param=param, ctx=ctx)


def _quickened(parameter: Any) -> Any:
    if parameter is not None and "get_runtime_param" not in vars(parameter):
        parameter.get_runtime_param = partial(QuickConversion, parameter, parameter.get_runtime_param)
    return parameter


class QuickCommand(TyperCommand):
    """A command whose parameters are read quickly."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, --help among them."""
        return [_quickened(parameter) for parameter in super().get_params(ctx)]


class QuickGroup(TyperGroup):
    """A group of commands whose own parameters are read quickly."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, --help among them."""
        return [_quickened(parameter) for parameter in super().get_params(ctx)]
