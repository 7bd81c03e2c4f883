"""The matcher: tells coordinators which brokers want which publications, by their subscribers' conditions (SREM)."""
