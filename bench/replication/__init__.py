"""The replication driver, what a second copy costs: `python -m lexicast.bench.replication --help`."""
