"""`lexicast spark`, `channel` and `export`: run as `python -m lexicast.raydp_jobs.cli`."""
