"""The damage driver, damaged stores that are served: `python -m lexicast.bench.damage --help`."""
