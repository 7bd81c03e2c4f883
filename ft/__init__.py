"""Fault tolerance across nodes (REAPS). A single node needs none of it: epochs and recovery live in `cluster` and `storage`."""
