"""The failover driver, drills on machines in namespaces: `python -m lexicast.bench.failover --help`."""
