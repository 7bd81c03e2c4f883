"""The drivers of the stored history: in Spark (`python -m lexicast.bench.history --help`), and what is learned from it
(`python -m lexicast.bench.history.learning --help`)."""
