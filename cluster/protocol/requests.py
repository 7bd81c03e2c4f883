"""What each REQUEST takes, argument by argument: the tables that both ends of a link are held to
(`cluster.protocol.shapes`).

A request that is missing here is not served: `tests/cluster/test_messages.py` compares the tables with what is.
"""

from __future__ import annotations

from typing import Any, Final

from ..points_in_time import LAST_MAX
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
    any_value,
    data,
    data_upto,
    each,
    either,
    mapping,
    name_text,
    nothing,
    row,
    topic_filter,
    topic_name,
    truth,
    whole_number,
)

GROUPS: Final = each(GROUP)
# Records asked for one by one: more than a session's window holds.
OFFSETS: Final = each(OFFSET)


def _since(value: Any) -> bool:
    """A point in the past: see `client_messages.WireSince`; of an unknown kind is the caller's mistake."""
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not str:
        return value is None
    return _START.get(value[0], _unknown)(value[1])


def _unknown(value: Any) -> bool:
    return True


_START: Final[dict[str, Shape]] = {"cursor": CURSOR, "time": WHOLE}


def _options(value: Any) -> bool:
    """A subscription's options; those that this version does not know are of no interest."""
    return type(value) is dict and all([type(name) is str for name in value])


_where: Final[Shape] = either(nothing, name_text)


# Records that a consumer group's member may be dealt and not have done, and how many it is where nobody says.
GROUP_WINDOW_MAX: Final = 65_535
GROUP_WINDOW: Final = 1_000

# Filters of one request to a coordinator, so that no turn of its event loop becomes long.
FILTERS_MAX: Final = 500

# The key of a topic's name: that, or its digest, behind a byte (`storage.file.keys`).
NAME_KEY_BYTES_MAX: Final = 481
# Where the last publications of topics go on: see `actors.coordinator.last_publications`.
LAST_PLACE: Final = row(
    WHOLE, either(nothing, data_upto(NAME_KEY_BYTES_MAX)), either(nothing, row(topic_name, OFFSET, OFFSET))
)
# Where retained publications go on: see `actors.coordinator.retained`.
RETAINED_PLACE: Final = row(WHOLE, either(nothing, each(either(nothing, data))))

# A shared subscription's name and filter, and its member.
SHARE_MEMBER: Final[Fields] = (name_text, topic_filter, name_text)
# group -> offsets of a member's records.
MEMBER_RECORDS: Final = mapping(GROUP, OFFSETS)

# Brokers ask coordinators.
COORDINATOR: Final[dict[str, Fields]] = {
    "resume": (CURSOR,),
    "register": (FILTERS,),
    "serve": (),
    "resume_groups": (CURSOR,),
    "subscribe": (FILTERS, truth),
    "unsubscribe": (FILTERS,),
    "choose": (FILTERS, FILTERS, WHOLE, truth),
    "offsets_at": (either(nothing, GROUPS), WHOLE),
    "records": (GROUP, OFFSETS),
    # `sessions`: SessionClaim, SessionLeft, SessionHeld; `session_floor.Standing`.
    "session_open": (GROUP, name_text, row(truth, data, WHOLE, WHOLE, data, data, data, name_text, name_text)),
    "session_save": (GROUP, name_text, WHOLE, row(WHOLE, WHOLE, WHOLE, either(nothing, data), data)),
    "session_end": (GROUP, name_text, WHOLE),
    "session_forgo": (GROUP, name_text, WHOLE),
    "sessions_hold": (each(row(GROUP, name_text, data, WHOLE, WHOLE, truth, name_text)),),
    "sessions_stand": (WHOLE, CURSOR, mapping(WHOLE, either(nothing, data))),
    "release": (GROUPS, data, WHOLE, PACKET_IDS),
    "dictionary": (DICTIONARY_ID,),
    "dictionary_put": (GROUP, DICTIONARY_ID, name_text, data),
    "history": (CURSOR, FILTERS, WHOLE, whole_number(1)),
    "count": (CURSOR, FILTERS, WHOLE),
    "last": (
        FILTERS,
        whole_number(1, LAST_MAX),
        CURSOR,
        either(nothing, CURSOR),
        WHOLE,
        either(nothing, LAST_PLACE),
        whole_number(1),
    ),
    "fetch": (CURSOR, either(nothing, FILTERS), whole_number(1)),
    "retained": (FILTERS, GROUPS, either(nothing, RETAINED_PLACE), whole_number(1)),
    # `coordinator.shares`.
    "share_join": (*SHARE_MEMBER, whole_number(1, 65_535), either(nothing, CURSOR), MEMBER_RECORDS, truth),
    "share_told": (each(row(*SHARE_MEMBER, MEMBER_RECORDS)),),
    "share_leave": (*SHARE_MEMBER, MEMBER_RECORDS),
    # What names of a level begin with, and from where on (`storage.tables.topic_levels`).
    "topics": (data, data, whole_number(1)),
    # `tracing.group_traces`.
    "trace": (GROUP, OFFSET, topic_name),
    "trace_begin": (GROUP,),
    "trace_end": (GROUP, WHOLE, OFFSET),
    "status": (),
}

# Coordinators ask brokers.
BROKER: Final[dict[str, Fields]] = {
    "session_yield": (name_text, WHOLE, truth),
    "session_will": (name_text, data, name_text),
}

# Leaders ask followers.
LEADER: Final[dict[str, Fields]] = {
    "follow": (mapping(GROUP, WHOLE),),
    "begin": (mapping(GROUP, row(WHOLE, whole_number(-1))),),
    "install": (GROUP, any_value),
    "end": (GROUP, WHOLE, whole_number(-1), row(WHOLE, WHOLE, WHOLE)),
    "set_aside": (GROUP, WHOLE, whole_number(-1)),
}

# Python clients ask brokers.
# A client's first request, if it is one: it wants a dictionary when that pays on its link, not all that there are, and
# has these already.
LINK_DICTIONARIES: Final = "link_dictionaries"

# The user property by which a publication is known that is traced, and the most bytes of its payload.
TRACE_MARK: Final = "lexicast-trace"
TRACED_BYTES_MAX: Final = 65_536

CLIENT: Final[dict[str, Fields]] = {
    LINK_DICTIONARIES: (each(DICTIONARY_ID),),
    "subscribe": (WHOLE, FILTERS, _since, _options),
    "unsubscribe": (WHOLE,),
    "retained": (WHOLE,),
    "group_join": (WHOLE, name_text, topic_filter, _since, _options),
    "group_done": (WHOLE, each(row(GROUP, OFFSET, OFFSET))),
    "dictionary": (DICTIONARY_ID,),
    "audience": (data, each(data)),
    "cluster": (),
    "brokers": (),
    "node_drain": (name_text, truth),
    "node_remove": (name_text,),
    "tls_reload": (),
    "security_give": (mapping(name_text, data),),
    "security_refuse": (name_text,),
    "clients": (whole_number(1),),
    # Consoles: what is wrong with this broker; actors by name; pages of clients (an id's part, behind which id), of
    # filters (behind which one), of topics; a client to be disconnected.
    "health": (),
    "actors": (each(name_text),),
    "clients_page": (name_text, name_text, whole_number(1)),
    "clients_lagging": (whole_number(1),),
    "filters_page": (data, whole_number(1)),
    "topics": (data, data, whole_number(1)),
    "disconnect": (name_text,),
    "history": (FILTERS, _since, WHOLE, either(nothing, CURSOR), whole_number(1), _where),
    "count": (FILTERS, _since, WHOLE, either(nothing, CURSOR), _where),
    "last": (
        FILTERS,
        _since,
        WHOLE,
        whole_number(1, LAST_MAX),
        either(nothing, each(row(GROUPS, either(nothing, LAST_PLACE)))),
        whole_number(1),
        _where,
    ),
    # `tracing.broker_traces`: of what is at an offset of a topic; of a mark.
    "trace": (topic_name, OFFSET, truth),
    "trace_begin": (name_text, topic_name, truth),
    "trace_publish": (name_text, data_upto(TRACED_BYTES_MAX)),
    "trace_seen": (name_text,),
    "trace_end": (name_text,),
    "clock": (),
    "status": (),
}
