"""The log-structured merge tree under DualDB: rows in columns, tiers in memory, sorted runs on LMDB."""
