"""The failover driver's scenarios, brokers that die under thousands of sessions: `--scenario`."""
