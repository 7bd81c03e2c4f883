"""The CPU driver of compressing once for all subscribers: `python -m lexicast.bench.stream_cpu --help`."""
