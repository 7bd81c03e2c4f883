"""lexicast: a publish/subscribe cluster on Ray that learns the language of its topics.

    async with lexicast.connect() as bus:
        position = await bus.publish("flights/JFK", b"...")
        async for message in bus.subscribe("flights/+", since="10m"):
            print(message.topic, message.payload)

`lexicast.sync` has the same, blocking. Everything here is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lexicast import sync
    from lexicast.actors.client import Client
    from lexicast.actors.client_connect import connect
    from lexicast.actors.client_messages import Message, Properties
    from lexicast.actors.client_publisher import PublishManyRefusedError
    from lexicast.actors.client_subscription import Subscription
    from lexicast.cluster.cells import cells
    from lexicast.cluster.errors import LexicastError, PublishRefusedError, UnavailableError
    from lexicast.cluster.positions import Position
    from lexicast.raydp_jobs.environment import spark_session as spark_session
    from lexicast.raydp_jobs.history import history as history

__version__: Final = "0.1.0"

_WHERE: Final = {
    "Client": "lexicast.actors.client",
    "LexicastError": "lexicast.cluster.errors",
    "Message": "lexicast.actors.client_messages",
    "Position": "lexicast.cluster.positions",
    "Properties": "lexicast.actors.client_messages",
    "PublishManyRefusedError": "lexicast.actors.client_publisher",
    "PublishRefusedError": "lexicast.cluster.errors",
    "Subscription": "lexicast.actors.client_subscription",
    "UnavailableError": "lexicast.cluster.errors",
    "cells": "lexicast.cluster.cells",
    "connect": "lexicast.actors.client_connect",
    # With lexicast[spark] alone, therefore not in __all__.
    "history": "lexicast.raydp_jobs.history",
    "spark_session": "lexicast.raydp_jobs.environment",
}

_OF_SPARK: Final = ("history", "spark_session")

__all__ = [
    "Client",
    "LexicastError",
    "Message",
    "Position",
    "Properties",
    "PublishManyRefusedError",
    "PublishRefusedError",
    "Subscription",
    "UnavailableError",
    "__version__",
    "cells",
    "connect",
    "sync",
]


def __getattr__(name: str) -> Any:
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
        unavailable = import_module("lexicast.cluster.errors").UnavailableError
        raise unavailable(
            f"lexicast.{name} needs {error.name}, which is not installed: pip install 'lexicast[spark]'"
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value
