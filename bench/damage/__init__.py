"""Damaged stores, served: `python -m lexicast.bench.damage --help`."""
