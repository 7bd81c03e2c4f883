"""A tree of the levels of rules' filters: what rules say of a topic, whatever their number.

Each node is a level; what rules say that end there, or in `/#` there, is the OR of their bits, for only that counts
(a denial is looked at before whatever allows, `rules`). A level of a pattern that holds %u or %c is a *template*: it
stands beside the literal levels of its node, and is filled with the names of whoever asks.

Filters as questions: whether some rule has a topic in common with a filter (`meets`), and whether some rule matches
all that it matches (`covers`), both level by level [MQTT-4.7.1].
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_MARKS: Final = re.compile(rb"(%[uc])")
_PLUS, _REST = b"+", b"#"


class Names(NamedTuple):
    """What %u and %c stand for; `user` None: nobody has logged in, and no pattern with %u applies."""

    user: bytes | None
    client_id: bytes


class Template:
    """A level, or a whole filter, with %u or %c in it; filled from left to right, once."""

    __slots__ = ("_parts",)

    def __init__(self, text: bytes) -> None:
        self._parts = _MARKS.split(text)

    def filled(self, names: Names) -> bytes | None:
        """The text; None where it asks for a user and there is none."""
        filled = b""
        for at, part in enumerate(self._parts):
            if at % 2 == 0:
                filled += part
            elif part == b"%c":
                filled += names.client_id
            elif names.user is None:
                return None
            else:
                filled += names.user
        return filled


def is_template(text: bytes) -> bool:
    """Whether %u or %c stands in it."""
    return b"%u" in text or b"%c" in text


class _RuleNode:
    """`here`: what rules say that end here; `rest`: those that end in `/#`; `below`: all of here and further down."""

    __slots__ = ("below", "children", "here", "rest", "templates")

    def __init__(self) -> None:
        self.here = 0
        self.rest = 0
        self.below = 0
        self.children: dict[bytes, _RuleNode] = {}
        self.templates: dict[bytes, tuple[Template, _RuleNode]] | None = None

    def child(self, level: bytes, fills: bool) -> _RuleNode:
        """The node of a level, which is made; `fills`: a template is one."""
        if fills and is_template(level):
            if self.templates is None:
                self.templates = {}
            if level not in self.templates:
                self.templates[level] = Template(level), _RuleNode()
            return self.templates[level][1]
        return self.children.setdefault(level, _RuleNode())

    def filled(self, names: Names | None) -> Iterator[tuple[bytes, _RuleNode]]:
        """The nodes of templates, with the level that each is for these names."""
        if self.templates is not None and names is not None:
            for template, node in self.templates.values():
                level = template.filled(names)
                if level is not None:
                    yield level, node


class RuleTree:
    """See the module's docstring. `fills`: %u and %c are templates; else they are what they are."""

    def __init__(self, fills: bool = False) -> None:
        self._root = _RuleNode()
        self._fills = fills

    def add(self, topic_filter: bytes, says: int) -> None:
        """A rule; its filter has passed `check_filter_form`."""
        levels = topic_filter.split(b"/")
        rest = levels[-1] == _REST
        node = self._root
        node.below |= says
        for level in levels[:-1] if rest else levels:
            node = node.child(level, self._fills)
            node.below |= says
        if rest:
            node.rest |= says
        else:
            node.here |= says

    def matching(self, levels: list[bytes], names: Names | None = None) -> int:
        """The OR of what rules say of a topic."""
        said = 0
        wild = not levels[0].startswith(b"$")  # [MQTT-4.7.2-1]
        nodes = [self._root]
        for level in levels:
            below: list[_RuleNode] = []
            for node in nodes:
                if wild:
                    said |= node.rest
                children = node.children
                if level in children:
                    below.append(children[level])
                if wild and _PLUS in children:
                    below.append(children[_PLUS])
                if node.templates is not None:
                    below += [each for filled, each in node.filled(names) if filled == level]
            if not below:
                return said
            nodes, wild = below, True
        for node in nodes:
            said |= node.here | node.rest
        return said

    def meets(self, levels: list[bytes], says: int, names: Names | None = None) -> bool:
        """Whether a rule that says one of these has a topic in common with a filter."""
        return _meets(self._root, levels, 0, says, names)

    def covers(self, levels: list[bytes], says: int, names: Names | None = None) -> bool:
        """Whether a rule that says one of these matches all that a filter matches."""
        wild = not levels[0].startswith(b"$")
        nodes = [self._root]
        for level in levels:
            if wild and any([node.rest & says for node in nodes]):
                return True
            if level == _REST:
                return False
            below: list[_RuleNode] = []
            for node in nodes:
                if wild and _PLUS in node.children:
                    below.append(node.children[_PLUS])
                if level != _PLUS:
                    below += _of_level(node, level, names)
            nodes, wild = below, True
        return any([(node.here | node.rest) & says for node in nodes])


def _of_level(node: _RuleNode, level: bytes, names: Names | None) -> list[_RuleNode]:
    """The nodes of this very level."""
    found = [each for filled, each in node.filled(names) if filled == level]
    if level in node.children:
        found.append(node.children[level])
    return found


def _meets(node: _RuleNode, levels: list[bytes], at: int, says: int, names: Names | None) -> bool:
    if not node.below & says:
        return False
    if at == len(levels):
        return (node.here | node.rest) & says != 0
    level, top = levels[at], at == 0
    if node.rest & says and not (top and level.startswith(b"$")):
        return True
    if level not in (_PLUS, _REST):
        found = _of_level(node, level, names)
        if _PLUS in node.children and not (top and level.startswith(b"$")):
            found.append(node.children[_PLUS])
        return any([_meets(each, levels, at + 1, says, names) for each in found])
    if level == _REST and not top:
        return _any_below(node, says, names)
    below = [each for name, each in node.children.items() if not (top and name.startswith(b"$"))]
    below += [each for name, each in node.filled(names) if not (top and name.startswith(b"$"))]
    if level == _REST:
        return any([_any_below(each, says, names) for each in below])
    return any([_meets(each, levels, at + 1, says, names) for each in below])


def _any_below(node: _RuleNode, says: int, names: Names | None) -> bool:
    """Whether a rule ends here or further down. (`below` alone counts those of templates that do not apply, too.)"""
    if not node.below & says:
        return False
    if (node.here | node.rest) & says:
        return True
    below = [*node.children.values(), *[each for _, each in node.filled(names)]]
    return any([_any_below(each, says, names) for each in below])
