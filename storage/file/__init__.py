"""The file below a store: LMDB's environment, its owners, its room, its tables and what is damaged."""
