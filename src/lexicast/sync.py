"""The client for programs without an event loop, and for notebooks: the names of `lexicast`, blocking.

with lexicast.sync.connect() as bus:
    bus.publish("flights/JFK", "...")
    for message in bus.subscribe("flights/+", since="10m"):
        print(message.topic, message.payload)
"""

from __future__ import annotations

from lexicast.actors.client.blocking.sync import SyncClient, connect
from lexicast.actors.client.blocking.sync_subscription import SyncSubscription

__all__ = ["SyncClient", "SyncSubscription", "connect"]
