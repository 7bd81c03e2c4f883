"""`lexicast acl check | show`: what the rules of an acl file let a user do, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from lexicast.cluster.config.tables import load_config
from lexicast.cluster.errors import ConfigError, TopicError, UsageError
from lexicast.cluster.security.acl_file import READ, AclRule
from lexicast.cluster.security.files import FILE_BYTES_MAX, rules_text
from lexicast.cluster.security.rules import ACTIONS, AccessRules
from lexicast.cluster.topics.names import check_filter, check_topic, is_wildcard

from .common import ConfigOption, SetOption, overrides, reported
from .parameters import QuickCommand, QuickGroup

MAY_NOT: Final = 1

acl = typer.Typer(
    cls=QuickGroup,
    help="""The rules of an acl file (security.acl_file), as Mosquitto's: who may publish and read what.

    Changes reach a cluster that serves by `lexicast security reload`.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--file", help="The acl file; else security.acl_file.", show_default=False)
]
ClientOption: TypeAlias = Annotated[
    str, typer.Option("--client-id", help="For patterns with %c.", show_default=False, metavar="ID")
]
UserOption: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[USER]", help='Without one, everybody; "" who has not logged in.')
]


@acl.command(cls=QuickCommand)
@reported
def check(
    user: Annotated[str, typer.Argument(metavar="USER", help='The user; "" for who has not logged in.')],
    action: Annotated[str, typer.Argument(metavar="read|write|history", help="history: what was published before.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic; for read and history also a filter.")],
    client_id: ClientOption = "",
    file: FileOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Say whether USER may read or publish to TOPIC. Exit code 0: yes, 1: no.

    lexicast acl check ada write plant/3/state

    lexicast acl check '' read 'public/#'

    lexicast acl check sensor-17 write devices/sensor-17/t --client-id sensor-17
    """
    if action not in ACTIONS:
        raise UsageError(f"{action!r}: ask for {', '.join(ACTIONS)}")
    name = topic.encode(errors="surrogateescape")
    _check_names(user, client_id)
    rules = _rules(file, config, settings)
    who = f"user {user!r}" if user else "who has not logged in"
    verb = {"read": "read", "write": "publish to", "history": "read the past of"}[action]
    if is_wildcard(name):
        _check_filter(name, action)
        meets = rules.meets(user, client_id, ACTIONS[action], name)
        whole = rules.covers(user, client_id, READ, name) and action == "read"
        typer.echo(f"{who} may {verb} {'all of' if whole else 'a part of' if meets else 'nothing of'} {topic}")
        allowed = meets
    else:
        check_topic(name)
        allowed = rules.may(user, client_id, ACTIONS[action], name)
        typer.echo(f"{who} may {'' if allowed else 'not '}{verb} {topic}")
    if not allowed:
        raise typer.Exit(MAY_NOT)


def _check_filter(name: bytes, action: str) -> None:
    try:
        check_filter(name)
    except TopicError as error:
        raise UsageError(str(error)) from None
    if action == "write":
        raise UsageError(f"{name.decode()!r} is a filter: one topic is published to")


@acl.command(cls=QuickCommand)
@reported
def show(
    user: UserOption = None, file: FileOption = None, config: ConfigOption = None, settings: SetOption = None
) -> None:
    """Print the rules that apply to USER, in the order in which they are asked; or how many everybody has.

    lexicast acl show ada
    """
    _check_names(user or "")
    rules = _rules(file, config, settings)
    for line in _everybody(rules) if user is None else _of(rules, user):
        typer.echo(line)


def _of(rules: AccessRules, user: str) -> Iterator[str]:
    found = list(rules.of_user(user))
    width = max([len(rule.text) for rule in found], default=0)
    for rule in found:
        yield f"{rule.text:<{width}}  # line {rule.line}"
    if not found:
        yield f"no rule applies to {user!r}: everything is denied" if user else "no rule applies: everything is denied"


def _everybody(rules: AccessRules) -> Iterator[str]:
    patterns: list[AclRule] = [rule for rule in rules.of_user("%u") if rule.is_pattern]
    users = rules.users()
    yield f"{len(rules):,} rules: {len(patterns):,} patterns for everybody, {len(rules) - len(patterns):,} of users"
    for rule in patterns:
        yield f"  {rule.text}"
    for name in users:
        own = len([rule for rule in rules.of_user(name) if not rule.is_pattern])
        yield f"{repr(name) if name else 'who has not logged in'}: {own:,}"


def _rules(file: Path | None, config: Path | None, settings: list[str] | None) -> AccessRules:
    """Those of the file. Raises ConfigError: none is named, or what is wrong with it."""
    named = file or load_config(config, overrides=overrides(None, settings)).security.acl_file
    if not named:
        raise ConfigError("no acl file is named: give --file, or security.acl_file in the configuration")
    path = Path(named).expanduser()
    try:
        with path.open("rb") as opened:
            return AccessRules.of_text(rules_text(opened.read(FILE_BYTES_MAX + 1)))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_names(*names: str) -> None:
    """Raises UsageError: a name that is no text is nobody's."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name!r} is not UTF-8, as all names in MQTT are") from None
