"""The failover driver's probers, which ask each machine's console and broker, and the judge of what they say."""
