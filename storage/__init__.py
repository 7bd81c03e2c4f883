"""The group log and DualDB, its index, on LMDB."""
