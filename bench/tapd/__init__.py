"""TAPD in an overlay: `python -m lexicast.bench.tapd --help`."""
