"""The TAPD driver, links of publishers in an overlay: `python -m lexicast.bench.tapd --help`."""
