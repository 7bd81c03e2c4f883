"""The tables that replaying the log would give, row by row."""
