"""The driver of the past by the index, beside a scan: `python -m lexicast.bench.past --help`."""
