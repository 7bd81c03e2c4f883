"""What each REQUEST takes, argument by argument: the tables that both ends of a link are held to (`cluster.shapes`).

A request that is missing here is not served: `tests/test_messages.py` compares the tables with what is.
"""

from __future__ import annotations

from typing import Any, Final

from .shapes import (
    CURSOR,
    DICTIONARY_ID,
    FILTERS,
    GROUP,
    OFFSET,
    PACKET_IDS,
    WHOLE,
    Fields,
    data,
    each,
    either,
    nothing,
    number,
    text,
    topic_filter,
    truth,
)

GROUPS: Final = each(GROUP)
# Records asked for one by one: more than a session's window holds.
OFFSETS: Final = each(OFFSET)


def _since(value: Any) -> bool:
    """A point in the past: see `client_messages.WireSince`; of an unknown kind is the caller's mistake."""
    return value is None or (type(value) is tuple and len(value) == 2 and _START.get(value[0], _unknown)(value[1]))


def _unknown(value: Any) -> bool:
    return True


_START: Final = {"cursor": CURSOR, "time": WHOLE}


def _options(value: Any) -> bool:
    """A subscription's options; those that this version does not know are of no interest."""
    return type(value) is dict and all([type(name) is str for name in value])


# Brokers ask coordinators.
COORDINATOR: Final[dict[str, Fields]] = {
    "resume": (CURSOR,),
    "register": (FILTERS,),
    "serve": (),
    "adopted": (),
    "subscribe": (FILTERS, truth),
    "unsubscribe": (FILTERS,),
    "offsets_at": (either(nothing, GROUPS), WHOLE),
    "first_kept": (GROUPS,),
    "records": (GROUP, OFFSETS),
    "session_generation": (GROUP, text),
    "session_open": (GROUP, text, truth, data, data),
    "session_save": (GROUP, text, WHOLE, WHOLE, data),
    "session_end": (GROUP, text, WHOLE),
    "release": (either(nothing, GROUPS), data, PACKET_IDS),
    "dictionary": (DICTIONARY_ID,),
    "dictionary_put": (GROUP, DICTIONARY_ID, text, data),
    "fetch": (CURSOR, either(nothing, FILTERS), number(1)),
    "retained": (FILTERS,),
    "status": (),
}

# Coordinators ask brokers.
BROKER: Final[dict[str, Fields]] = {"session_yield": (text, WHOLE, truth)}

# Python clients ask brokers.
CLIENT: Final[dict[str, Fields]] = {
    "subscribe": (WHOLE, topic_filter, _since, _options),
    "unsubscribe": (WHOLE,),
    "dictionary": (DICTIONARY_ID,),
    "audience": (data, each(data)),
    "history": (topic_filter, _since, WHOLE, either(nothing, CURSOR), number(1)),
    "status": (),
}
