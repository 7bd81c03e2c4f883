"""Messages over narrow links: `python -m lexicast.bench.bandwidth --help`."""
