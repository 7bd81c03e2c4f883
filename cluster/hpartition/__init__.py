"""HPartition, SREM's content space cut into cells: who holds which subscriptions, who is asked about an event. Pure."""
