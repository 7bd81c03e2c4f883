"""The security driver, what TLS, users and rules cost: `python -m lexicast.bench.security --help`."""
