"""The resume driver, sessions that all return at once: `python -m lexicast.bench.resume --help`."""
