"""Drivers that measure lexicast beside its peers: `python -m lexicast.bench.<driver> --help`."""
