"""What compressing once for all costs: `python -m lexicast.bench.stream_cpu --help`."""
