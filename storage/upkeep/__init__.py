"""The upkeep of an open store, in short steps between commits: what leaves the log, what is looked through."""
