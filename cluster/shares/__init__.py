"""Shares: one cursor for all members of a shared subscription, and who of them gets which publication. Pure."""
