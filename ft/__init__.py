"""Fault tolerance across nodes (REAPS). One node needs none of it: recovery is in `cluster` and `storage`."""
