"""The Spark demo, the jobs on real data: `python -m lexicast.bench.demo_spark --help`."""
