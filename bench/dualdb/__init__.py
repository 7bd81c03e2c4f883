"""The drivers of DualDB beside baselines and other engines: `python -m lexicast.bench.dualdb --help`, `.crash`."""
