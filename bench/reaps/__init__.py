"""The REAPS driver, backups of brokers and what they cost, simulated: `python -m lexicast.bench.reaps --help`."""
