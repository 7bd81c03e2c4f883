"""Which brokers a publication has passed, so that none gets it twice: rings of bridges, and bridges both ways.

A publication that leaves a broker over a bridge has a user property `lexicast-via` for each broker that it has left, in
order: a cluster's id, or, for a broker that has none, the address by which a bridge reaches it. What comes back to a
broker that it has left is not taken, what would be sent to one that it has left is not sent.

A broker of MQTT 3.1.1 passes no user properties on; see `echoes`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ..errors import TopicError

VIA: Final = "lexicast-via"
# Of a cluster's id; enough to tell the clusters of a site apart.
ID_CHARACTERS: Final = 12
# Beyond it something goes round that nobody recognises.
HOPS_MAX: Final = 16
# A bridge asks a lexicast with it for its id, and is told.
CLUSTER_PROPERTY: Final = "lexicast-cluster"

# Of the shares of bridges; no MQTT client is a member.
SHARE_PREFIX: Final = "bridge:"

UserProperties: TypeAlias = tuple[tuple[str, str], ...]


def short_id(cluster_id: str) -> str:
    """What names a cluster among the hops."""
    return cluster_id[:ID_CHARACTERS]


def check_share_of_client(name: str) -> None:
    """Raises TopicError for the share of a bridge: a client there would take what is to go to another broker."""
    if name.startswith(SHARE_PREFIX):
        raise TopicError(f"share name {name!r}: those that begin with {SHARE_PREFIX!r} are bridges'")


def passed(properties: UserProperties) -> tuple[str, ...]:
    """The brokers that a publication has left."""
    return tuple([value for name, value in properties if name == VIA])


def onward(properties: UserProperties, leaves: str, enters: str) -> UserProperties | None:
    """The user properties with which a publication goes from one broker to another; None where it is not to go: it has
    been there, it has been here before it came here last, or it goes round."""
    via = passed(properties)
    if enters in via or leaves in via or len(via) >= HOPS_MAX:
        return None
    return (*properties, (VIA, leaves))
