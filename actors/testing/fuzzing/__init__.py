"""A fuzzer of all that takes bytes from strangers: what each may do with them, and what finds the bytes."""
