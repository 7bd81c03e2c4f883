"""The fleet driver, an hour of devices, compressed: `python -m lexicast.bench.fleet --help`."""
