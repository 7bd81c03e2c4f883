"""All ways of maintaining dictionaries on all corpora: `python -m lexicast.bench.compression --help`."""
