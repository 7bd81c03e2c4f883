"""The SREM driver, content subscriptions matched and shared out: `python -m lexicast.bench.srem --help`."""
