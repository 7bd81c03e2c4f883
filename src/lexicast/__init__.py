"""lexicast: a publish/subscribe cluster on Ray that learns the language of its topics.

    async with lexicast.connect() as bus:
        position = await bus.publish("flights/JFK", b"...")
        async for message in bus.subscribe("flights/+", since="10m"):
            print(message.topic, message.payload)

`lexicast.sync` has the same, blocking; `lexicast.mqtt` is paho-mqtt with dictionaries; `lexicast.testing` has a broker
in memory for tests. `history` and `spark_session` need `lexicast[spark]`. Everything here is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from . import compiled as _compiled

if TYPE_CHECKING:
    from lexicast import sync as sync
    from lexicast.actors.client.awaited_positions import PublishManyRefusedError as PublishManyRefusedError
    from lexicast.actors.client.client import Client as Client
    from lexicast.actors.client.connect import connect as connect
    from lexicast.actors.client.messages import Message as Message
    from lexicast.actors.client.messages import Properties as Properties
    from lexicast.actors.client.subscription import Subscription as Subscription
    from lexicast.cluster.errors import AuthenticationError as AuthenticationError
    from lexicast.cluster.errors import ConfigError as ConfigError
    from lexicast.cluster.errors import DictionaryError as DictionaryError
    from lexicast.cluster.errors import LexicastError as LexicastError
    from lexicast.cluster.errors import NoReplyError as NoReplyError
    from lexicast.cluster.errors import NotAuthorizedError as NotAuthorizedError
    from lexicast.cluster.errors import PeerError as PeerError
    from lexicast.cluster.errors import PublishRefusedError as PublishRefusedError
    from lexicast.cluster.errors import StoreError as StoreError
    from lexicast.cluster.errors import TopicError as TopicError
    from lexicast.cluster.errors import UnavailableError as UnavailableError
    from lexicast.cluster.errors import UsageError as UsageError
    from lexicast.cluster.positions import Position as Position
    from lexicast.cluster.topics.cells import cells as cells
    from lexicast.raydp_jobs.history.dataframe import history as history
    from lexicast.raydp_jobs.spark.environment import spark_session as spark_session

__version__: Final = "0.1.0"

# Before any module of the data path is imported.
_compiled.use()

_ERRORS: Final = "lexicast.cluster.errors"
_WHERE: Final = {
    "AuthenticationError": _ERRORS,
    "Client": "lexicast.actors.client.client",
    "ConfigError": _ERRORS,
    "DictionaryError": _ERRORS,
    "LexicastError": _ERRORS,
    "Message": "lexicast.actors.client.messages",
    "NoReplyError": _ERRORS,
    "NotAuthorizedError": _ERRORS,
    "PeerError": _ERRORS,
    "Position": "lexicast.cluster.positions",
    "Properties": "lexicast.actors.client.messages",
    "PublishManyRefusedError": "lexicast.actors.client.awaited_positions",
    "PublishRefusedError": _ERRORS,
    "StoreError": _ERRORS,
    "Subscription": "lexicast.actors.client.subscription",
    "TopicError": _ERRORS,
    "UnavailableError": _ERRORS,
    "UsageError": _ERRORS,
    "cells": "lexicast.cluster.topics.cells",
    "connect": "lexicast.actors.client.connect",
    "history": "lexicast.raydp_jobs.history.dataframe",
    "spark_session": "lexicast.raydp_jobs.spark.environment",
    "sync": "lexicast",
}
# With lexicast[spark] alone, therefore not in __all__.
_OF_SPARK: Final = ("history", "spark_session")

__all__ = [
    "AuthenticationError",
    "Client",
    "ConfigError",
    "DictionaryError",
    "LexicastError",
    "Message",
    "NoReplyError",
    "NotAuthorizedError",
    "PeerError",
    "Position",
    "Properties",
    "PublishManyRefusedError",
    "PublishRefusedError",
    "StoreError",
    "Subscription",
    "TopicError",
    "UnavailableError",
    "UsageError",
    "__version__",
    "cells",
    "connect",
    "sync",
]


def __dir__() -> list[str]:
    """What there is for users, and what every module has."""
    return sorted({*__all__, *_OF_SPARK, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        # `import lexicast.cluster.blocks` runs this module first: it must not pull the client in behind it.
        if name == "sync":
            return import_module("lexicast.sync")
        if name not in _WHERE:
            raise AttributeError(f"module 'lexicast' has no attribute {name!r}")
        try:
            module = import_module(_WHERE[name])
        except ModuleNotFoundError as error:
            if name not in _OF_SPARK or str(error.name).startswith("lexicast"):
                raise
            unavailable = import_module(_ERRORS).UnavailableError
            raise unavailable(
                f"lexicast.{name} needs {error.name}, which is not installed: pip install 'lexicast[spark]'"
            ) from None
        value = getattr(module, name)
        globals()[name] = value
        return value
