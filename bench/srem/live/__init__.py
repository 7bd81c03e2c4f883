"""The SREM driver's part on running clusters: what matchers spare brokers, and what they cost."""
