"""DualDB: a log-structured merge tree of publications and subscriptions on LMDB."""
