"""DualDB beside the paper's baselines and other engines: `python -m lexicast.bench.dualdb --help`."""
