"""Content subscriptions at their broker: which publications of a block they get (SREM; docs/content.md)."""
