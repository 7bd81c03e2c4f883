"""The stored history in Spark, and what is learned from it: `python -m lexicast.bench.history --help`."""
