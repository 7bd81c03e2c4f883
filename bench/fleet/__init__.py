"""A fleet's hour, compressed: `python -m lexicast.bench.fleet --help`."""
