"""The compression driver, all maintenance algorithms on all corpora: `python -m lexicast.bench.compression --help`."""
