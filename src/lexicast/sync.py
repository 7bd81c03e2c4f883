"""The blocking client: `with lexicast.sync.connect() as bus:` (see `lexicast.actors.client.sync`)."""

from __future__ import annotations

from lexicast.actors.client.sync import SyncClient, SyncSubscription, connect

__all__ = ["SyncClient", "SyncSubscription", "connect"]
