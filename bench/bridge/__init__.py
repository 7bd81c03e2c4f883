"""The bridge driver, through cuts, beside Mosquitto's, between clusters: `python -m lexicast.bench.bridge --help`."""
