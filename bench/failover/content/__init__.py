"""The failover driver's drills of content subscriptions, whose matchers die: `--scenario content`."""
