"""Channels (REAPS, section II): a question in SQL, answered again every period for whoever subscribes.

A channel is defined by a retained publication on `$channel/NAME`: its SQL with named parameters (`:user`), its period,
and the tables that the SQL names:

    history    what was published to a filter within a window: one row a publication
    state      the latest publication of each topic of a filter within a window: where everybody is now; with a
               condition (`where`) the latest of which it is true
    tables     fixed ones, as CSV

Rows of history and state have the columns topic, time, publisher, and the fields of the JSON payload that `columns`
gives types to. To subscribe to a channel is to subscribe to `$channel/NAME/PARAMETERS` (`channel_topic`): the same
parameters give the same topic, whoever asks, so the brokers make one back-end subscription of it, which the runner
finds in the log. Each period's *new* rows (those that the answer before did not have) are published there, as a JSON
object {"time": ..., "answer": a name that no other message has, "rows": [{...}, ...]}, QoS 1, and delivered, stored and
recovered like anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import parse_duration
from lexicast.cluster.topics.names import check_filter

PREFIX: Final = "$channel/"
DEFINITIONS_FILTER: Final = "$channel/+"
PERIOD_S_MIN: Final = 1.0
DEFINITION_BYTES_MAX: Final = 512 * 1024
TOPIC_CHARACTERS_MAX: Final = 65_000
"""A little less than a topic may have: what is kept of a subscription stands under a longer name."""

_NAME: Final = re.compile(r"[A-Za-z_]\w{0,63}")
# What in SQL is no parameter: strings, quoted names, comments, casts (a::int).
_MARKERS: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|::|:(\w+)", re.DOTALL)

Value = str | int | float


@dataclass(frozen=True)
class PublicationTable:
    """A table made of publications: those to `filter` in the last `window_s`, of which the condition `where` is true
    where there is one; `columns` types the JSON's fields."""

    filter: str
    window_s: float
    columns: str
    where: str | None = None


@dataclass(frozen=True)
class Channel:
    """One definition. Raises UsageError when it cannot be used."""

    name: str
    sql: str
    period_s: float
    history: dict[str, PublicationTable] = field(default_factory=dict)
    state: dict[str, PublicationTable] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.period_s < PERIOD_S_MIN:
            raise UsageError(
                f"channel {self.name}: a period of {self.period_s:g} s, at least {PERIOD_S_MIN:g} is needed"
            )
        names = [*self.history, *self.state, *self.tables]
        for name in (self.name, *names):
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} is no name for a channel or a table: letters, digits and _, such as locations"
                )
        if len(set(names)) != len(names):
            raise UsageError(f"channel {self.name}: two tables have one name")
        for source in (*self.history.values(), *self.state.values()):
            check_filter(source.filter.encode())
            if source.window_s <= 0:
                raise UsageError(f"channel {self.name}: a window of {source.window_s:g} s of {source.filter}")
            if source.where is not None:
                predicate(source.where)
        if not self.sql.strip():
            raise UsageError(f"channel {self.name}: the SQL is empty")

    @property
    def topic(self) -> str:
        """Where the definition is retained."""
        return PREFIX + self.name

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that the SQL names, sorted."""
        return tuple(sorted({found for found in _MARKERS.findall(self.sql) if found}))

    def pack(self) -> bytes:
        """The definition as it is published. Raises UsageError when it is too long."""
        packed = json.dumps(asdict(self)).encode()
        if len(packed) > DEFINITION_BYTES_MAX:
            raise UsageError(
                f"channel {self.name}: {len(packed):,} bytes with its tables, at most {DEFINITION_BYTES_MAX:,}: "
                "publish large tables as retained messages and read them as state"
            )
        return packed


def unpack_channel(payload: bytes) -> Channel:
    """The inverse of `Channel.pack`. Raises UsageError."""
    try:
        fields = json.loads(payload)
        for kind in ("history", "state"):
            fields[kind] = {name: PublicationTable(**source) for name, source in fields[kind].items()}
        return Channel(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"not a channel's definition: {error}") from None


def channel_topic(name: str, parameters: Mapping[str, Value] | None = None) -> str:
    """The topic to subscribe to: `$channel/NAME/a=1,user=ann`, parameters in order of their names, escaped."""
    pairs = sorted((parameters or {}).items())
    return f"{PREFIX}{name}/" + ",".join(
        [f"{quote(key, safe='')}={quote(str(value), safe='')}" for key, value in pairs]
    )


def parse_topic(topic: str) -> tuple[str, dict[str, Value]] | None:
    """(channel, parameters) of a topic from `channel_topic`; None for any other."""
    if not topic.startswith(PREFIX) or topic.count("/") != 2 or len(topic) > TOPIC_CHARACTERS_MAX:
        return None
    name, _, text = topic.removeprefix(PREFIX).partition("/")
    parameters: dict[str, Value] = {}
    for pair in text.split(",") if text else ():
        key, equals, value = pair.partition("=")
        if not equals:
            return None
        parameters[unquote(key)] = _value(unquote(value))
    if not name or channel_topic(name, parameters) != topic:
        return None  # two topics for one question would be two answers
    return name, parameters


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text:
            return value
    return text


def same_types(rows: Sequence[Mapping[str, Value]], parameters: Sequence[str]) -> list[dict[str, Value]]:
    """The rows with one type a parameter: numbers where all are, doubles where one is, else texts."""
    made = [dict(row) for row in rows]
    for name in parameters:
        kinds = {type(row[name]) for row in made}
        if len(kinds) > 1:
            kind = str if str in kinds else float
            for row in made:
                row[name] = kind(row[name])
    return made


def inlined(sql: str, table: str) -> str:
    """The SQL with each parameter as a column of `table`, so that one query answers for all of its rows."""
    return _MARKERS.sub(lambda found: f"{table}.`{found[1]}`" if found[1] else found[0], sql)


def parse_table(
    text: str, columns: Mapping[str, str], wheres: Mapping[str, str] | None = None
) -> tuple[str, PublicationTable]:
    """`NAME=FILTER@WINDOW` of the command line, such as "emergencies=emergencies/#@10m"; `columns`, `wheres` by name.
    Raises UsageError."""
    name, equals, rest = text.partition("=")
    filter, at, window = rest.rpartition("@")
    if not equals or not at:
        raise UsageError(f"{text!r}: write NAME=FILTER@WINDOW, such as emergencies=emergencies/#@10m")
    window_s = parse_duration(window).total_seconds()
    return name, PublicationTable(filter, window_s, columns.get(name, ""), (wheres or {}).get(name))
