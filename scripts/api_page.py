"""The page of the Python API, docs/api.md, out of the docstrings: `python scripts/api_page.py` writes it.

tests/docs/test_api_page.py fails while the page is not what the code says.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
WIDTH = 100
OF_SPARK = ("history", "spark_session")
# Names of paho-mqtt's own module, which has a page elsewhere.
FOREIGN = "paho."

INTRODUCTION = """# The Python API

Every public name with its signature and docstring. Programs to begin with are in [python.md](python.md). This page is
made from the code by `scripts/api_page.py`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *lexicast_part(), *module_part("lexicast.sync"), *module_part("lexicast.mqtt")]
    text = "\n".join([*parts, *module_part("lexicast.testing")])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def lexicast_part() -> Iterator[str]:
    """`lexicast`: first how one begins, then what one holds, then the errors."""
    module = importlib.import_module("lexicast")
    yield from heading(module)
    names = [name for name in [*module.__all__, *OF_SPARK] if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    errors = {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, Exception)}
    others = {name: each for name, each in found.items() if name not in errors and not inspect.ismodule(each)}
    functions = [name for name, each in others.items() if not isinstance(each, type)]
    for name in [*sorted(functions, key=lambda each: each != "connect"), *(n for n in others if n not in functions)]:
        yield from entry(name, others[name])
    yield "### Errors\n"
    yield "| error | is a | |"
    yield "| --- | --- | --- |"
    for name, each in errors.items():
        yield f"| `{name}` | {', '.join(f'`{base.__name__}`' for base in each.__bases__)} | {joined(each)} |"
    yield ""


def module_part(dotted: str) -> Iterator[str]:
    """One of the smaller modules."""
    module = importlib.import_module(dotted)
    yield from heading(module)
    for name in module.__all__:
        each = getattr(module, name)
        own = not str(getattr(each, "__module__", FOREIGN)).startswith((FOREIGN, "builtins"))
        if own and not (isinstance(each, type) and issubclass(each, Exception)) and inspect.getdoc(each):
            yield from entry(name, each)


def heading(module: ModuleType) -> Iterator[str]:
    """A module's name and docstring."""
    yield f"## {module.__name__}\n"
    yield f"{(module.__doc__ or '').strip()}\n"  # inspect.getdoc would take the indentation of examples for its own


def entry(name: str, each: Any) -> Iterator[str]:
    """A function, or a class with its members."""
    yield f"### {name}\n"
    yield code(f"{'class ' if isinstance(each, type) else ''}{name}{signature(each)}")
    yield f"{inspect.getdoc(each)}\n"
    if isinstance(each, type):
        members = [(member, value) for member, value in vars(each).items() if is_for_users(member, value)]
        twins = {member: text for member, value in members if (text := joined(value)).startswith("As ")}
        for member, value in members:
            if member not in twins:
                yield from member_entry(member, value)
        for member, text in twins.items():
            yield f"- `{member}`: {text[0].lower()}{text[1:]}"
        yield ""


def is_for_users(name: str, value: Any) -> bool:
    """Whether a member is meant for users: it has a docstring, which does not lead to a protocol between our parts."""
    return not name.startswith("_") and bool(getattr(value, "__doc__", None)) and not joined(value).startswith("See ")


def member_entry(name: str, value: Any) -> Iterator[str]:
    """A method or a property; fields are told by the class."""
    if isinstance(value, property):
        returned = inspect.get_annotations(value.fget or property).get("return", "")
        yield code(f"{name}: {returned}")
    elif inspect.isroutine(value):
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        waits = "async " if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain) else ""
        yield code(f"{waits}{name}{signature(plain, is_method=not isinstance(value, staticmethod))}")
    else:
        return
    yield f"{inspect.getdoc(value)}\n"


def code(text: str) -> str:
    """A block of Python; signatures that are too long for a line have one for each parameter."""
    if len(text) > WIDTH:
        head, _, rest = text.partition("(")
        inner, _, tail = rest.rpartition(")")
        text = f"{head}(\n    " + ",\n    ".join(split(inner)) + f",\n){tail}"
    return f"```py\n{text}\n```\n"


def split(parameters: str) -> list[str]:
    """Parameters one by one: at commas that stand in no bracket."""
    found, depth = [""], 0
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [each.strip() for each in found]


def signature(each: Any, *, is_method: bool = False) -> str:
    """The parameters and what is returned; nothing of a class that is not made by its user."""
    if isinstance(each, type) and not made_by_users(each):
        return ""
    found = inspect.signature(each)
    shown = [p.replace(annotation=Plain(p.annotation), default=default(p)) for p in found.parameters.values()]
    returned = Plain(found.return_annotation)
    text = str(found.replace(parameters=shown[is_method:], return_annotation=inspect.Signature.empty))
    return f"{text} -> {returned!r}" if returned.text and not isinstance(each, type) else text


def made_by_users(each: type) -> bool:
    """Whether the class is called by its users: those whose docstring says that something else makes them are not."""
    return "ade by `" not in joined(each)


class Plain:
    """An annotation or default as it stands in the code."""

    def __init__(self, annotation: Any) -> None:
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        self.text = annotation if isinstance(annotation, str) else ""
        if not self.text and annotation is not inspect.Parameter.empty:
            self.text = annotation.__name__ if isinstance(annotation, type) else repr(annotation)

    def __repr__(self) -> str:
        return self.text


def default(parameter: inspect.Parameter) -> Any:
    """The default, enumerations by their names."""
    if isinstance(parameter.default, enum.Enum):
        return Plain(f"{type(parameter.default).__name__}.{parameter.default.name}")
    return parameter.default


def joined(each: Any) -> str:
    """A docstring in one line, for a table."""
    return " ".join((inspect.getdoc(each) or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(PAGE.read_text(encoding='utf-8').splitlines())} lines")
