"""What each REQUEST takes, argument by argument: the tables that both ends of a link are held to
(`cluster.protocol.shapes`).

A request that is missing here is not served: `tests/cluster/test_messages.py` compares the tables with what is.
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
    Shape,
    data,
    each,
    either,
    mapping,
    nothing,
    number,
    row,
    text,
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


_START: Final[dict[str, Shape]] = {"cursor": CURSOR, "time": WHOLE}


def _options(value: Any) -> bool:
    """A subscription's options; those that this version does not know are of no interest."""
    return type(value) is dict and all([type(name) is str for name in value])


# Brokers ask coordinators.
COORDINATOR: Final[dict[str, Fields]] = {
    "resume": (CURSOR,),
    "register": (FILTERS,),
    "serve": (),
    "subscribe": (FILTERS, truth),
    "unsubscribe": (FILTERS,),
    "offsets_at": (either(nothing, GROUPS), WHOLE),
    "records": (GROUP, OFFSETS),
    # See `session_home`: Asked, Left, Held, Standing.
    "session_open": (GROUP, text, row(truth, data, WHOLE, WHOLE, data, data, data)),
    "session_save": (GROUP, text, WHOLE, row(WHOLE, WHOLE, WHOLE, either(nothing, data), data)),
    "session_end": (GROUP, text, WHOLE),
    "sessions_hold": (each(row(GROUP, text, data, WHOLE, WHOLE, truth)),),
    "sessions_stand": (WHOLE, CURSOR, mapping(WHOLE, either(nothing, data))),
    "release": (either(nothing, GROUPS), data, PACKET_IDS),
    "dictionary": (DICTIONARY_ID,),
    "dictionary_put": (GROUP, DICTIONARY_ID, text, data),
    "fetch": (CURSOR, either(nothing, FILTERS), number(1)),
    "retained": (FILTERS, either(nothing, row(WHOLE, either(nothing, each(either(nothing, data))))), number(1)),
    "status": (),
}

# Coordinators ask brokers.
BROKER: Final[dict[str, Fields]] = {"session_yield": (text, WHOLE, truth), "session_will": (text, data)}

# Python clients ask brokers.
CLIENT: Final[dict[str, Fields]] = {
    "subscribe": (WHOLE, FILTERS, _since, _options),
    "unsubscribe": (WHOLE,),
    "retained": (WHOLE,),
    "dictionary": (DICTIONARY_ID,),
    "audience": (data, each(data)),
    "cluster": (),
    "clients": (number(1),),
    "history": (FILTERS, _since, WHOLE, either(nothing, CURSOR), number(1)),
    "status": (),
}
