"""The bandwidth driver, messages over narrow links: `python -m lexicast.bench.bandwidth --help`."""
