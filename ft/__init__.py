"""Fault tolerance across nodes (REAPS). One node needs none of it: epochs and recovery are in `cluster` and `storage`."""
