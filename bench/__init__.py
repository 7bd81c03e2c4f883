"""Drivers that measure lexicast beside its peers, and the demo: `python -m lexicast.bench.<driver> --help`."""
