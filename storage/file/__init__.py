"""The LMDB file below a store: who may open it, how its rows are sealed and keyed, what becomes of damaged ones."""
